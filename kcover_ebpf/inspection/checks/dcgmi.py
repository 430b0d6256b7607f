"""DCGM's own diagnosis at level 1, which runs nothing on the GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned

_GET = "install datacenter-gpu-manager on the node"
_MILD = (1, 5)
"""dcgmErrorSeverity_t (dcgm_errors.h): to be watched, and a matter of configuration."""
_START = "start the host engine: systemctl start nvidia-dcgm"


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each test that did not pass; one that counts the others."""
    ran = commands.run_tool(["dcgmi", "diag", "--run", "1", "--json"], options.root, _GET)
    if isinstance(ran, CheckFinding):
        yield ran
        return
    results = list(_results(_object(ran.output)))
    if not results:
        yield unknown(f"dcgmi ended with code {ran.exit_code}: {ran.first_line}", _START)
        return
    passes = 0
    for test, status, words in results:
        text = f"{test}: {words or status}"
        if status == "setting":
            yield warned(text, "change the setting that the test names")
        elif status == "fail":
            yield failed(text, "drain the node and run dcgmi diag --run 3")
        elif status == "warn":
            yield warned(text, "see the documentation of the test at dcgmi diag")
        else:
            passes += status == "pass"
    if passes:
        yield passed(f"{passes} result(s) of dcgmi diag level 1 passed")
    else:
        yield unknown("dcgmi diag skipped every test", "see dcgmi diag --run 1 --verbose")


def _object(output: str) -> Any:
    """The JSON object: some versions print lines of text before it or after it. None without one."""
    start = output.find("{")
    try:
        return json.JSONDecoder().raw_decode(output[max(start, 0) :])[0]
    except (ValueError, RecursionError):
        return None


def _results(node: Any, test: str = "") -> Iterator[tuple[str, str, str]]:
    """(test, status in small letters or "setting", warnings); each version nests them another way."""
    if isinstance(node, list):
        for item in node:
            yield from _results(item, test)
    elif isinstance(node, dict):
        test = str(node.get("name", test))
        if isinstance(status := node.get("status"), str) and "results" not in node:
            warnings = node.get("warnings")
            is_setting = status.lower() == "fail" and _is_setting(warnings)
            yield test, "setting" if is_setting else status.lower(), _words(warnings)
        for key, item in node.items():
            if key != "test_summary":
                yield from _results(item, test)


def _is_setting(warnings: Any) -> bool:
    """DCGM 4 fails a node whose persistence mode is off: no fault of the hardware, and it says so."""
    if not isinstance(warnings, list) or not warnings:
        return False
    return all(isinstance(w, dict) and w.get("error_severity") in _MILD for w in warnings)


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
