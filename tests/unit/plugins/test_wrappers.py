"""The plug-ins that run the tools of others, which are programs of the shell here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kcover_ebpf.host import cgroups
from kcover_ebpf.inspection.plugins import exit_code_of
from plugins import dcgmi, nccl_tests
from tests.unit.support.inspection_hosts import pci_device, tool

PASS, FAIL, UNKNOWN = 0, 1, 2


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of programs, before all others, and a host without any."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for module in (dcgmi, nccl_tests):
        monkeypatch.setattr(module, "host_root", lambda: tmp_path)
    monkeypatch.setattr(cgroups, "memory_limit_bytes", lambda: None)
    for address in ("0000:5d:00.0", "0000:5e:00.0"):
        pci_device(tmp_path, address)
    return folder


def test_examine__a_missing_tool_is_unknown_and_says_how_to_get_it(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools))
    code, evidence = dcgmi.examine()
    assert (code, "install datacenter-gpu-manager" in evidence) == (UNKNOWN, True)
    code, evidence = nccl_tests.examine("")
    assert (code, "github.com/NVIDIA/nccl-tests" in evidence) == (UNKNOWN, True)


def test_exit_code_of__a_plugin_that_crashes_is_no_fault_of_the_node(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tools / "dcgmi").write_text("#!/no/such/shell\n")
    (tools / "dcgmi").chmod(0o755)
    assert exit_code_of(dcgmi.examine) == UNKNOWN
    assert capsys.readouterr().out.startswith("the check itself failed: FileNotFoundError: ")


def diagnosis(*results: dict[str, object]) -> str:
    tests = [{"name": "Page Retirement/Row Remap", "results": list(results)}]
    answer = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "x", "tests": tests}]}}
    return f"cat <<'END'\nSuccessfully ran diagnostic.\n{json.dumps(answer)}\nEND"


SETTING: dict[str, object] = {
    "status": "Fail",
    "warnings": [{"error_severity": 5, "warning": "persistence"}],
}


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (diagnosis({"status": "Pass", "gpu_ids": "0"}), PASS, "1 result(s)"),
        (
            diagnosis({"status": "Pass"}, {"status": "FAIL", "warnings": "row remap failed"}),
            FAIL,
            "Page Retirement/Row Remap: row remap failed",
        ),
        (
            diagnosis(
                {"status": "Pass"}, {"status": "Warn", "warnings": [{"warning": "use -pm\n1"}]}
            ),
            PASS,
            "passed; Page Retirement/Row Remap: use -pm 1",
        ),
        (diagnosis({"status": "Pass"}, SETTING), PASS, "persistence"),
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
def test_examine__dcgmi(tools: Path, script: str, code: int, words: str) -> None:
    tool(tools, "dcgmi", script)
    found, evidence = dcgmi.examine()
    assert (found, words in evidence, evidence.count("\n")) == (code, True, 0), evidence


def reduced(wrong: int, speed: float) -> str:
    return f"echo '# Out of bounds values : {wrong} OK'; echo '# Avg bus bandwidth    : {speed}'"


@pytest.mark.parametrize(
    ("script", "floor", "code", "words"),
    [
        (reduced(0, 412.5), "400", PASS, "2 GPU(s): 412.5 GB/s, floor 400"),
        (reduced(0, 399.0), "400.0", FAIL, "below the floor"),
        (reduced(0, 3.0), "", PASS, "no floor was given"),
        (reduced(3, 412.5), "400", FAIL, "3 wrong value(s)"),
        ("echo 'unhandled system error'; exit 3", "", FAIL, "code 3: unhandled system error"),
        ("true", "", FAIL, "it printed nothing"),
        ("kill -9 $$", "400", UNKNOWN, "killed, as it is for lack of memory"),
        ("true", "fast", UNKNOWN, "should be a number"),
    ],
)
def test_examine__nccl_tests(tools: Path, script: str, floor: str, code: int, words: str) -> None:
    tool(tools, "all_reduce_perf", f'[ "$6" = 2 ] || exit 7\n{script}')
    found, evidence = nccl_tests.examine(floor)
    assert (found, words in evidence) == (code, True), evidence


def test_examine__nccl_tests_are_not_run_where_memory_is_short(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "memory_limit_bytes", lambda: 256 << 20)
    tool(tools, "all_reduce_perf", f"touch {tools}/ran")
    code, evidence = nccl_tests.examine("")
    assert code == UNKNOWN
    assert evidence.startswith("not run: 2 GPU(s) need 2048 MiB of memory, we may use 256")
    assert not (tools / "ran").exists()
