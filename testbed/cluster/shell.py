"""Runs other programs; a failure becomes one line with the end of what they said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testbed.cluster.errors import Failure

Words = Sequence[str | Path]
Say = Callable[[str], None]
"""Shows the user what takes a while."""


def text(*command: str | Path, stdin: str | None = None, timeout_s: float = 600) -> str:
    """What the command printed; raises Failure when it fails."""
    done = _done(command, stdin, timeout_s)
    if done.returncode != 0:
        raise Failure(f"{_short(command)}: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def works(*command: str | Path, timeout_s: float = 60) -> bool:
    """Whether the command ends well."""
    try:
        return _done(command, None, timeout_s).returncode == 0
    except (OSError, Failure):
        return False


def logged(log: Path, command: Words, env: Mapping[str, str] | None = None) -> None:
    """Run a long command with its output in a log; raises Failure that points to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        done = subprocess.run(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=env, check=False
        )
    if done.returncode != 0:
        said = last_line(log.read_text(errors="replace"))
        raise Failure(f"{_short(command)} failed: {said} (log: {log})")


def last_line(said: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _done(command: Words, stdin: str | None, timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise Failure(f"{command[0]} is not installed: run tools/setup cluster") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{_short(command)}: no answer in {timeout_s:.0f} s") from error


def _short(command: Words) -> str:
    words = [Path(command[0]).name, *map(str, command[1:4])]
    return " ".join(words) + (" ..." if len(command) > 4 else "")
