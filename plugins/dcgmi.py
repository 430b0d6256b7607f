#!/usr/bin/env python3
# kcover-ebpf: deadline=120
"""DCGM's own diagnosis at level 1, which runs nothing on the GPUs: libraries, permissions, page retirement, inforom.

Runs `dcgmi diag --run 1 --json` with the node's dcgmi. A test that fails only because of a setting (persistence
mode) is reported, and does not fail the node.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from kcover_ebpf.host.host_programs import host_root
from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.plugins import exit_code_of
from kcover_ebpf.inspection.result import CheckFinding

PASS, FAIL, UNKNOWN = 0, 1, 2
_GET = "install datacenter-gpu-manager on the node"
_MILD = (1, 5)
"""dcgmErrorSeverity_t (dcgm_errors.h): to be monitored, and a matter of configuration."""


def examine() -> tuple[int, str]:
    """Exit code and evidence for the node."""
    ran = commands.run_tool(["dcgmi", "diag", "--run", "1", "--json"], host_root(), _GET)
    if isinstance(ran, CheckFinding):
        return UNKNOWN, f"{ran.evidence}; {ran.advice}"
    results = list(results_of(object_in(ran.output)))
    if not results:
        return UNKNOWN, f"dcgmi ended with code {ran.exit_code}: {ran.first_line}"
    failing = [text for status, text in results if status == "fail"]
    noted = [text for status, text in results if status in ("setting", "warn")]
    if failing:
        return FAIL, "; ".join(failing)
    passes = sum(status == "pass" for status, _ in results)
    if not passes:
        return UNKNOWN, "; ".join(noted) or "dcgmi diag skipped every test"
    return PASS, "; ".join([f"{passes} result(s) of dcgmi diag level 1 passed", *noted])


def object_in(output: str) -> Any:
    """The JSON object in the output; some versions print text before or after it. None if there is none."""
    start = output.find("{")
    try:
        return json.JSONDecoder().raw_decode(output[max(start, 0) :])[0]
    except (ValueError, RecursionError):
        return None


def results_of(node: Any, test: str = "") -> Iterator[tuple[str, str]]:
    """(status in lower case or "setting", test with its warnings); the nesting differs between versions."""
    if isinstance(node, list):
        for item in node:
            yield from results_of(item, test)
    elif isinstance(node, dict):
        test = str(node.get("name", test))
        if isinstance(status := node.get("status"), str) and "results" not in node:
            warnings = node.get("warnings")
            is_setting = status.lower() == "fail" and _is_setting(warnings)
            yield (
                "setting" if is_setting else status.lower(),
                f"{test}: {_words(warnings) or status}",
            )
        for key, item in node.items():
            if key != "test_summary":
                yield from results_of(item, test)


def _is_setting(warnings: Any) -> bool:
    """DCGM 4 fails a node whose persistence mode is off: its warning shows that this is no hardware fault."""
    if not isinstance(warnings, list) or not warnings:
        return False
    return all(isinstance(w, dict) and w.get("error_severity") in _MILD for w in warnings)


def _words(warnings: Any) -> str:
    if isinstance(warnings, list):
        return "; ".join(filter(None, map(_words, warnings)))
    if isinstance(warnings, dict):
        return _words(warnings.get("warning"))
    return " ".join(warnings.split()) if isinstance(warnings, str) else ""


if __name__ == "__main__":
    sys.exit(exit_code_of(examine))
