"""The commands that pages show exist, with the options that they show."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kcover_ebpf.cli import cli
from kcover_ebpf.cli.kubectl import kubectl
from tools.docs import links

ROOT = Path(__file__).resolve().parents[3]
TARGETS = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS = {"kcover-ebpf": cli, "kubectl-kcover": kubectl}


def shown(page: Path) -> Iterator[str]:
    """The lines of a page's shell examples, continued ones joined."""
    for block in SHELL.findall(page.read_text()):
        yield from block.replace("\\\n", " ").splitlines()


def unknown(line: str) -> str | None:
    """What a line asks of our commands or of make that does not exist; None if nothing."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["make"]:
        return next((w for w in words[1:] if "=" not in w and w not in TARGETS), None)
    if words[:2] == ["kubectl", "kcover"]:
        words = ["kubectl-kcover", *words[2:]]
    program = PROGRAMS.get(Path(words[0]).name) if words else None
    if program is None or len(words) == 1 or words[1].startswith("-"):
        return None
    command = program.get_command(click.Context(program), words[1])
    if command is None:
        return words[1]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    asked = (word.partition("=")[0] for word in words[2:] if word.startswith("-") and word != "-")
    for option in asked:
        if option == "--":
            return None
        if option not in known | {"--help"}:
            return option
    return None


@pytest.mark.parametrize("page", links.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages__commands_on_pages_exist(page: Path) -> None:
    assert [line for line in shown(page) if unknown(line)] == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("make nothing", "nothing"),
        ("make demo FAULT=stop  # a comment", None),
        (".venv/bin/kcover-ebpf ruin", "ruin"),
        ("kcover-ebpf run --no-such -- ls --all", "--no-such"),
        ("kcover-ebpf run --act=shutdown -- ls --all", None),
        ("kubectl kcover lost", "lost"),
        ("kubectl get incidents --no-such", None),
    ],
)
def test_doc_commands__unknown(line: str, found: str | None) -> None:
    assert unknown(line) == found
