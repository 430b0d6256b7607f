"""Runs external tools: limits their output, and names missing ones.

There is no time limit here: the process of the check has one, and its end is the tools' end. Tools missing in our
own PATH are searched for on the host, because the agent's image contains none.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kcover_ebpf.confined import helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import capabilities, host_programs
from kcover_ebpf.inspection.result import CheckFinding, unknown

_OUTPUT_BYTES = 1 << 20
"""Most bytes of a tool's output; dcgmi prints 0.1 MB for eight GPUs."""
_MAY = "set agent.privileged: true, or run kcover-ebpf inspect on the node itself"
_ENTERING = ("nsenter: ", "chroot: ")
"""Prefix of their error messages when they could not start the program."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Exit code and output of a tool that ended."""

    exit_code: int
    """Exit code; negative: the signal that ended the tool."""
    output: str
    """Standard output, interleaved with standard error unless that was dropped; at most 1 MiB."""

    @property
    def first_line(self) -> str:
        """The first non-empty line, at most 200 characters."""
        lines = (line.strip() for line in self.output.splitlines())
        return next(filter(None, lines), "it printed nothing")[:200]


def run(argv: Sequence[str]) -> Ran | None:
    """Exit code and output of a program; None if it is not on the PATH."""
    program = shutil.which(argv[0])
    return None if program is None else _ran([program, *argv[1:]], None)


def run_plugin(file: Path) -> Ran:
    """Exit code and output of an operator's executable, without standard error; raises `OSError` if it cannot be run.

    Our interpreter is first on its PATH, so that a plug-in in Python finds this package.
    """
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return _ran([str(file)], os.environ | {"PATH": path}, with_errors=False)


def is_installed(name: str, host: Path) -> bool:
    """True if it is on our own PATH, or below `host`, the host's root."""
    return shutil.which(name) is not None or host_programs.find(host, name) is not None


def run_tool(argv: Sequence[str], host: Path, get: str) -> Ran | CheckFinding:
    """As `run`, but falls back to the host's program; a finding that is unknown if neither can be run.

    `host`: the host's root; `get`: how to install the tool.
    """
    return run(argv) or _run_on_host(argv[0], argv[1:], host, get)


def _run_on_host(name: str, arguments: Sequence[str], host: Path, get: str) -> Ran | CheckFinding:
    program = host_programs.find(host, name)
    if program is None:
        where = f"the host's files and those of its driver container (below {host})"
        return unknown(f"{name} is neither on the PATH here, nor in {where}", get)
    if _is_out_of_reach(program):
        return unknown(f"{program.path} is on the host, and we lack the privileges to run it", _MAY)
    ran = _ran(program.argv(*arguments), host_programs.ENVIRONMENT)
    if ran.first_line.startswith(_ENTERING):
        return unknown(f"{program.path} is on the host, and does not start: {ran.first_line}", _MAY)
    return ran


def _is_out_of_reach(program: host_programs.HostProgram) -> bool:
    # without it, a container also has none of the devices, and a healthy GPU would fail
    return program.is_apart and capabilities.Capability.SYS_ADMIN not in capabilities.effective()


def _ran(
    argv: Sequence[str], environment: Mapping[str, str] | None, *, with_errors: bool = True
) -> Ran:
    errors_to = subprocess.STDOUT if with_errors else subprocess.DEVNULL
    tool = helper.start(argv, None, stderr=errors_to, environment=environment)
    output = bytearray()
    while block := os.read(tool.stdout, _OUTPUT_BYTES):
        output += block[: _OUTPUT_BYTES - len(output)]
    tool.wait(math.inf)
    tool.end()
    assert tool.exit_code is not None
    return Ran(tool.exit_code, output.decode(errors="replace"))
