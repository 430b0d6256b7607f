"""Completion in real shells: each loads the script that `kcover-ebpf completion` prints, and completes a line."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kcover_ebpf import cli
from testbed.skips import require

PROGRAM = Path(sys.executable).with_name("kcover-ebpf")
# The shell's own function gets the words, the last one unfinished, and prints what it would offer.
BASH = """
source "$SCRIPT"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_kcover_ebpf_completion kcover-ebpf
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Without an interactive line editor: what the function hands to zsh's own _describe and compadd.
ZSH = """
compdef() { }
_describe() { local each; for each in "${(@P)3}"; do print -r -- "${each%%:*}"; done }
compadd() { print -rl -- "${(@P)@[-1]}" }
source "$SCRIPT"
words=("$@") CURRENT=$#
_kcover_ebpf_completion
"""
FISH = """
source "$SCRIPT"
complete --do-complete "$argv" | string split --fields 1 \\t
"""
SHELLS: dict[str, tuple[str, ...]] = {
    "bash": ("bash", "--norc", "-c", BASH, "bash"),
    "zsh": ("zsh", "-f", "-c", ZSH, "zsh"),
    "fish": ("fish", "--no-config", "-c", FISH),
}
Complete = Callable[..., set[str]]


@pytest.fixture(params=SHELLS)
def complete(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Complete:
    """What a shell offers for the last of some words."""
    shell = request.param
    require(shell)
    assert cli.main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "SCRIPT": str(script),
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
    }

    def complete(*words: str) -> set[str]:
        line = ["kcover-ebpf", *words]
        done = subprocess.run(
            [*SHELLS[shell], *([" ".join(line)] if shell == "fish" else line)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return {offer.strip() for offer in done.stdout.splitlines()} - {""}

    return complete


def test_completion__commands(complete: Complete) -> None:
    assert complete("r") == {"replay", "report", "run"}


def test_completion__options_of_a_command(complete: Complete) -> None:
    assert complete("run", "--max") == {"--max-restarts"}


def test_completion__values_of_an_option(complete: Complete) -> None:
    assert complete("run", "--act", "s") == {"snapshot", "shutdown"}
