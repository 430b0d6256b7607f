"""Notes what became of each test, and what it measured, in .vm/results.json for tools/hardware_doc.py."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from functools import cache
from typing import Any

import pytest

from testbed.machines.packages import ROOT, STORE, Kernel, locked
from tests.vm.kernels import known_version
from tools.hardware_doc import FAMILIES

FILE = STORE / "results.json"


def take(item: pytest.Item, report: pytest.TestReport) -> None:
    """Note a test that ran, or that was skipped or failed before it could."""
    if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
        return
    mark = item.get_closest_marker("family")
    if mark is None:
        return
    (family,) = mark.args
    if family not in FAMILIES:
        pytest.fail(f"tools/hardware_doc.py knows no family {family}", pytrace=False)
    params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    kernel = params.pop("prepared", None)
    group, version = "drivers", ""
    if isinstance(kernel, Kernel):
        group, version = kernel.name, known_version(kernel)
    words = "-".join(str(getattr(value, "name", value)) for value in params.values())
    name = f"{item.path.stem}::{getattr(item, 'originalname', item.name)}"
    _write(group, f"{name}[{words}]" if words else name, _entry(item, report, family, version))


def _entry(
    item: pytest.Item, report: pytest.TestReport, family: str, version: str
) -> dict[str, Any]:
    # what is measured beside other work is worse than what is measured alone
    load = round(os.getloadavg()[0], 1)
    return {
        "load": load,
        "family": family,
        "outcome": report.outcome,
        "reason": _reason(report),
        "seconds": round(report.duration, 1),
        "figures": dict(item.user_properties),
        "version": version,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    lines = report.longreprtext.splitlines()
    # pytest marks what went wrong with an E
    said = [line[1:].strip() for line in lines if line.startswith("E ")] or lines[-1:]
    return " ".join(said)[:200]


@cache
def _commit() -> str:
    command = ("git", "-C", str(ROOT), "describe", "--always", "--dirty=+")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _write(group: str, name: str, entry: dict[str, Any]) -> None:
    with locked("results"):
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        known.setdefault(group, {})[name] = entry
        FILE.write_text(json.dumps(known, indent=1))
