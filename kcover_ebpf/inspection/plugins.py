"""Checks of the operator: executables, as node-problem-detector's custom plugins are.

Exit code 0 is well, 1 a problem, any other that it does not know; the first line of standard output
says what it saw. Standard error is dropped: node-problem-detector makes no message of it either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kcover_ebpf.errors import UsageError
from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown
from kcover_ebpf.tunables.inspection import PLUGIN_DEADLINE_S


def load(folder: Path) -> tuple[Check, ...]:
    """The files of a folder by name, hidden ones left out; `UsageError` if it cannot be read."""
    try:
        files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UsageError(f"cannot read the plug-ins in {folder}: {error.strerror}") from error
    return tuple(
        Check(
            f"plugin/{file.name}",
            Cost.LIGHT,
            PLUGIN_DEADLINE_S,
            "what the operator's executable says",
            str(file),
            partial(_run, file.absolute()),
        )
        for file in files
        if not file.is_dir()
    )


def _run(file: Path, _: InspectionOptions) -> Iterator[CheckFinding]:
    if not os.access(file, os.X_OK):
        yield unknown(f"{file} is not executable", f"chmod +x {file}")
        return
    try:
        ran = commands.run([str(file)], with_errors=False)
    except OSError as error:
        yield unknown(
            f"{file} cannot be run: {error.strerror}", "does its first line begin with #!?"
        )
        return
    if ran is None:
        yield unknown(f"{file} is gone")
    elif ran.exit_code == 0:
        yield passed(ran.first_line)
    elif ran.exit_code == 1:
        yield failed(ran.first_line, f"see the documentation of {file.name}")
    else:
        yield unknown(f"exit code {ran.exit_code}: {ran.first_line}")
