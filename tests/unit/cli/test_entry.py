"""What every command can rely on, however it was started."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os, sys
import click
from kcover_ebpf.cli.entry import call

@click.command()
@click.argument("report")
def command(report):
    print("printed")
    print("printed", file=sys.stderr, flush=True)
    sys.stdin.read()
    child = os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "true <&0 >&1 2>&2")
    with open(report, "w") as file:
        file.write(f"{file.fileno() > 2} {child}")
    return 7

code = call(command, "name", None)
sys.stdout.flush()
sys.exit(code)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_entry__a_closed_standard_stream_stops_no_command(closed: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    script = f'exec "$@" {closed}'
    command = [sys.executable, "-c", _PROGRAM, str(report)]
    ended = subprocess.run(
        ["sh", "-c", script, "sh", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 7, ended.stderr
    assert report.read_text() == "True 0"
    assert ended.stdout == ("" if " >&-" in f" {closed}" else "printed\n")
    assert ended.stderr == ("" if "2>&-" in closed else "printed\n")
