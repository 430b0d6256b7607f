"""DCGM's own diagnosis at level 1, which runs nothing on the GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, Cost, Finding, failed, passed, unknown, warned

_GET = "install datacenter-gpu-manager, or run where dcgmi is on the PATH"
_START = "start the host engine: systemctl start nvidia-dcgm"


def find(_: InspectionOptions) -> Iterator[Finding]:
    """A finding for each test that did not pass; one that counts the others."""
    ran = commands.run(["dcgmi", "diag", "--run", "1", "--json"])
    if ran is None:
        yield unknown("dcgmi is not on the PATH", _GET)
        return
    # Some versions print a line of text before the object.
    start = ran.output.find("{")
    try:
        answer = json.loads(ran.output[start:]) if start >= 0 else None
    except ValueError:
        answer = None
    results = list(_results(answer))
    if not results:
        yield unknown(f"dcgmi ended with code {ran.exit_code}: {ran.first_line}", _START)
        return
    passes = 0
    for test, status, words in results:
        text = f"{test}: {words or status}"
        if status == "fail":
            yield failed(text, "drain the node and run dcgmi diag --run 3")
        elif status == "warn":
            yield warned(text, "see the documentation of the test at dcgmi diag")
        else:
            passes += status == "pass"
    if passes:
        yield passed(f"{passes} result(s) of dcgmi diag level 1 passed")
    else:
        yield unknown("dcgmi diag skipped every test", "see dcgmi diag --run 1 --verbose")


def _results(node: Any, test: str = "") -> Iterator[tuple[str, str, str]]:
    """(test, status in small letters, warnings): versions 2 to 4 nest them differently, with the same names."""
    if isinstance(node, list):
        for each in node:
            yield from _results(each, test)
    elif isinstance(node, dict):
        test = str(node.get("name", test))
        if isinstance(status := node.get("status"), str) and "results" not in node:
            yield test, status.lower(), _words(node.get("warnings"))
        for key, each in node.items():
            if key != "test_summary":
                yield from _results(each, test)


def _words(warnings: Any) -> str:
    if isinstance(warnings, list):
        return "; ".join(filter(None, map(_words, warnings)))[:500]
    if isinstance(warnings, dict):
        return _words(warnings.get("warning"))
    return warnings.strip() if isinstance(warnings, str) else ""


CHECK = Check(
    "dcgmi",
    Cost.LIGHT,
    120.0,
    "NVIDIA's deployment tests: libraries, permissions, denylist, page retirement, inforom",
    "`dcgmi diag --run 1 --json`",
    find,
)
