"""Checks that ask the tools of others, which are programs of the shell here; and plug-ins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kcover_ebpf.errors import UsageError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection import plugins
from kcover_ebpf.inspection.checks import dcgmi, nccl_tests, nvidia_smi
from kcover_ebpf.inspection.result import Check
from tests.unit.inspection_hosts import found, pci_device, tool

PASS, WARN, FAIL, UNKNOWN = Result.PASS, Result.WARN, Result.FAIL, Result.UNKNOWN


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of programs, before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (nvidia_smi.CHECK, "install NVIDIA's driver"),
        (dcgmi.CHECK, "install datacenter-gpu-manager"),
        (nccl_tests.CHECK, "github.com/NVIDIA/nccl-tests"),
    ],
    ids=lambda check: check.name if isinstance(check, Check) else "",
)
def test_inspection_tools__a_missing_tool_is_unknown_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: Check, words: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    one = found(check, tmp_path)
    assert one.result is UNKNOWN
    assert "neither on the PATH here, nor in the host's files" in one.evidence
    assert str(tmp_path) in one.evidence
    assert words in one.advice


@pytest.mark.parametrize(
    ("script", "result", "words"),
    [
        ("echo 'GPU 0: H100'; echo 'GPU 1: H100'", PASS, "lists 2 GPU(s)"),
        ("echo 'GPU 0: H100'", FAIL, "lists 1 GPU(s), 2 are on the PCI bus"),
        ("echo 'Unable to determine the device handle'; exit 15", FAIL, "code 15: Unable"),
        ("echo 'no devices' >&2; exit 9", FAIL, "code 9: no devices"),
    ],
)
def test_inspection_tools__nvidia_smi(
    tools: Path, tmp_path: Path, script: str, result: Result, words: str
) -> None:
    for address in ("0000:5d:00.0", "0000:5e:00.0"):
        pci_device(tmp_path, address)
    tool(tools, "nvidia-smi", script)
    one = found(nvidia_smi.CHECK, tmp_path)
    assert one.result is result
    assert words in one.evidence


def diagnosis(*results: dict[str, object]) -> str:
    tests = [{"name": "Page Retirement/Row Remap", "results": list(results)}]
    answer = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "x", "tests": tests}]}}
    return f"cat <<'END'\nSuccessfully ran diagnostic.\n{json.dumps(answer)}\nEND"


@pytest.mark.parametrize(
    ("script", "result", "words"),
    [
        (diagnosis({"status": "Pass", "gpu_ids": "0"}), PASS, "1 result(s)"),
        (
            diagnosis({"status": "Pass"}, {"status": "FAIL", "warnings": "row remap failed"}),
            FAIL,
            "Page Retirement/Row Remap: row remap failed",
        ),
        (
            diagnosis({"status": "Warn", "warnings": [{"error_id": 3, "warning": "use -pm 1"}]}),
            WARN,
            "Page Retirement/Row Remap: use -pm 1",
        ),
        (
            diagnosis(
                {"status": "Fail", "warnings": [{"error_severity": 5, "warning": "persistence"}]}
            ),
            WARN,
            "persistence",
        ),
        (
            diagnosis({"status": "Fail", "warnings": [{"error_severity": 2, "warning": "row"}]}),
            FAIL,
            "row",
        ),
        (diagnosis({"status": "Pass"}) + "\necho done", PASS, "1 result(s)"),
        (diagnosis({"status": "Skip"}), UNKNOWN, "skipped every test"),
        ("echo 'Error: unable to establish a connection'; exit 1", UNKNOWN, "unable to establish"),
        ("echo '{broken'", UNKNOWN, "code 0"),
    ],
)
def test_inspection_tools__dcgmi(
    tools: Path, tmp_path: Path, script: str, result: Result, words: str
) -> None:
    tool(tools, "dcgmi", script)
    one = found(dcgmi.CHECK, tmp_path)
    assert one.result is result
    assert words in one.evidence


def reduced(wrong: int, speed: float) -> str:
    return f"echo '# Out of bounds values : {wrong} OK'; echo '# Avg bus bandwidth    : {speed}'"


@pytest.mark.parametrize(
    ("script", "floor", "result", "words"),
    [
        (reduced(0, 412.5), 400.0, PASS, "2 GPU(s): 412.5 GB/s, floor 400"),
        (reduced(0, 399.0), 400.0, FAIL, "below the floor"),
        (reduced(0, 3.0), None, PASS, "no floor was given"),
        (reduced(3, 412.5), 400.0, FAIL, "3 wrong value(s)"),
        ("echo 'unhandled system error'; exit 3", 400.0, FAIL, "code 3: unhandled system error"),
        ("true", None, FAIL, "it printed nothing"),
        ("kill -9 $$", 400.0, UNKNOWN, "killed, as it is for lack of memory"),
    ],
)
def test_inspection_tools__nccl_tests(
    tools: Path, tmp_path: Path, script: str, floor: float | None, result: Result, words: str
) -> None:
    for address in ("0000:5d:00.0", "0000:5e:00.0"):
        pci_device(tmp_path, address)
    tool(tools, "all_reduce_perf", f'[ "$6" = 2 ] || exit 7\n{script}')
    one = found(nccl_tests.CHECK, tmp_path, nccl_floor_gb_s=floor)
    assert one.result is result
    assert words in one.evidence


def reporter(state: str, errors: int) -> str:
    one = {"reporter": "fw_fatal", "state": state, "error": errors, "recover": errors}
    return f"echo '{json.dumps({'health': {'pci/0000:40:00.0': [one]}})}'"


@pytest.mark.parametrize(
    ("script", "result", "evidence"),
    [
        ("echo 'all is well'; echo more", PASS, "all is well"),
        ("echo 'no licence'; exit 1", FAIL, "no licence"),
        ("echo '?'; exit 2", UNKNOWN, "exit code 2: ?"),
        ("echo 'curl: a warning' >&2; echo 'no licence'; exit 1", FAIL, "no licence"),
        ("echo 'a warning' >&2", PASS, "it printed nothing"),
        ("kill -9 $$", UNKNOWN, "exit code -9: it printed nothing"),
        ("yes x | tr -d '\\n' | head -c 9000000", PASS, "x" * 200),
    ],
)
def test_load__a_plugin(tmp_path: Path, script: str, result: Result, evidence: str) -> None:
    tool(tmp_path, "ours", script)
    (check,) = plugins.load(tmp_path)
    assert check.name == "plugin/ours"
    one = found(check, tmp_path)
    assert (one.result, one.evidence) == (result, evidence)


def test_load__plugins_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "a").write_text("#!/bin/sh\n")
    (tmp_path / "b").write_text("no program")
    (tmp_path / "b").chmod(0o755)
    first, second = plugins.load(tmp_path)
    assert "chmod +x" in found(first, tmp_path).advice
    one = found(second, tmp_path)
    assert (one.result, "cannot be run" in one.evidence) == (UNKNOWN, True)
    with pytest.raises(UsageError, match="cannot read the plug-ins"):
        plugins.load(tmp_path / "nowhere")
