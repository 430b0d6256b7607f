"""Runs the operator's checks: executables in the manner of node-problem-detector's custom plugins.

Exit code 0 means that everything is in order, 1 that there is a problem, any other that the result is unknown. The
first line of standard output says what was observed. Standard error is dropped, as node-problem-detector does. Options
are set in a comment at the top of the file; node-problem-detector has them in the rules of its configuration:

    # kcover-ebpf: cost=heavy deadline=180 problem=warn
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError
from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import (
    Check,
    CheckFinding,
    Cost,
    failed,
    passed,
    unknown,
    warned,
)
from kcover_ebpf.tunables.inspection import (
    PLUGIN_DEADLINE_S,
    PLUGIN_HEAVY_LONGEST_S,
    PLUGIN_LONGEST_S,
)

_HEAD_BYTES = 2048
_UNKNOWN = 2
_HEADER = re.compile(rb"^# kcover-ebpf:(.*)$", re.MULTILINE)
_LONGEST_S = {Cost.LIGHT: PLUGIN_LONGEST_S, Cost.HEAVY: PLUGIN_HEAVY_LONGEST_S}


@dataclass(frozen=True, slots=True)
class PluginHeader:
    """Options in the header comment of a plug-in."""

    cost: Cost = Cost.LIGHT
    deadline_s: float = PLUGIN_DEADLINE_S
    is_warning: bool = False
    """Exit code 1 is a warning, which does not make the node unfit."""


def load(folder: Path) -> tuple[Check, ...]:
    """The files of a folder, sorted by name, without hidden ones; `UsageError` if it, or a header, cannot be read."""
    try:
        files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UsageError(f"cannot read the plug-ins in {folder}: {error.strerror}") from error
    return tuple(_check(file) for file in files if not file.is_dir())


def _check(file: Path) -> Check:
    header = header_of(file)
    return Check(
        f"plugin/{file.name}",
        header.cost,
        header.deadline_s,
        "the result of the operator's executable",
        str(file),
        partial(_run, file.absolute(), header),
    )


def header_of(file: Path) -> PluginHeader:
    """The options in its comment, or the defaults; `UsageError` for an unknown option.

    An unreadable file gets the defaults: whether it can be run is only known when it is run.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError:
        return PluginHeader()
    words = _HEADER.search(head)
    pairs = (
        [word.partition("=") for word in words[1].decode(errors="replace").split()] if words else []
    )
    values = {key: value for key, _, value in pairs}
    try:
        cost = Cost(values.pop("cost", Cost.LIGHT.value))
        deadline_s = float(values.pop("deadline", PLUGIN_DEADLINE_S))
        is_warning = {"fail": False, "warn": True}[values.pop("problem", "fail")]
    except (ValueError, KeyError) as error:
        raise UsageError(f"{file}: its header is not understood: {error}") from error
    if values:
        raise UsageError(f"{file}: its header has the unknown word {next(iter(values))[:40]!r}")
    if not 0 < deadline_s <= _LONGEST_S[cost]:
        raise UsageError(f"{file}: its deadline is not within {_LONGEST_S[cost]:g} s")
    return PluginHeader(cost, deadline_s, is_warning)


def exit_code_of(examine: Callable[[], tuple[int, str]]) -> int:
    """Print the evidence of a plug-in in Python and return its exit code; 2, unknown, if it crashes.

    Python's own exit code for a crash is 1, which would be a problem of the node.
    """
    try:
        code, evidence = examine()
    except Exception as error:  # noqa: BLE001 - whatever it is, the node was not examined
        code, evidence = _UNKNOWN, f"the check itself failed: {type(error).__name__}: {error}"
    sys.stdout.write(f"{evidence}\n")
    return code


def _run(file: Path, header: PluginHeader, _: InspectionOptions) -> Iterator[CheckFinding]:
    if not os.access(file, os.X_OK):
        yield unknown(f"{file} is not executable", f"chmod +x {file}")
        return
    try:
        ran = commands.run_plugin(file)
    except FileNotFoundError:
        yield unknown(f"{file} is gone, or the program of its first line is not there")
        return
    except OSError as error:
        yield unknown(
            f"{file} cannot be run: {error.strerror}", "does its first line begin with #!?"
        )
        return
    if ran.exit_code == 0:
        yield passed(ran.first_line)
    elif ran.exit_code == 1:
        problem = warned if header.is_warning else failed
        yield problem(ran.first_line, f"see the documentation of {file.name}")
    else:
        yield unknown(f"exit code {ran.exit_code}: {ran.first_line}")
