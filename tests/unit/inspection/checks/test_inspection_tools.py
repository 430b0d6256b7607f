"""Checks that ask the tools of others, which are programs of the shell here; and plug-ins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kcover_ebpf.errors import UsageError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection import plugins, schedule
from kcover_ebpf.inspection.checks import nvidia_smi
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Cost
from testbed.skips import ROOT
from tests.unit.support.inspection_hosts import found, pci_device, tool

PASS, WARN, FAIL, UNKNOWN = Result.PASS, Result.WARN, Result.FAIL, Result.UNKNOWN


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of programs, before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_inspection_tools__a_missing_tool_is_unknown_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    one = found(nvidia_smi.CHECK, tmp_path)
    assert one.result is UNKNOWN
    assert "neither on the PATH here, nor in the host's files" in one.evidence
    assert str(tmp_path) in one.evidence
    assert "install NVIDIA's driver" in one.advice


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


@pytest.mark.parametrize(
    ("script", "result", "evidence"),
    [
        ("echo 'all is well'; echo more", PASS, "all is well"),
        ("# kcover-ebpf: problem=warn\necho 'a pod is idle'; exit 1", WARN, "a pod is idle"),
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (Cost.LIGHT, 5.0)),
        ("cost=heavy deadline=180", (Cost.HEAVY, 180.0)),
        ("deadline=120", (Cost.LIGHT, 120.0)),
    ],
)
def test_load__the_header_of_a_plugin(
    tmp_path: Path, words: str, expected: tuple[Cost, float]
) -> None:
    tool(tmp_path, "ours", f"# kcover-ebpf: {words}")
    (check,) = plugins.load(tmp_path)
    assert (check.cost, check.deadline_s) == expected


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("cost=free", "'free'"),
        ("deadline=soon", "'soon'"),
        ("deadline=121", "within 120 s"),
        ("deadline=nan", "within 120 s"),
        ("cost=heavy deadline=601", "within 600 s"),
        ("problem=none", "'none'"),
        ("often", "unknown word 'often'"),
    ],
)
def test_load__a_header_that_is_not_understood(tmp_path: Path, words: str, what: str) -> None:
    tool(tmp_path, "ours", f"# kcover-ebpf: {words}")
    with pytest.raises(UsageError, match=what):
        plugins.load(tmp_path)


def test_load__a_plugin_in_python_finds_this_package(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("#!/usr/bin/env python3\nimport sys\nprint(sys.executable)\n")
    (tmp_path / "ours.py").chmod(0o755)
    (check,) = plugins.load(tmp_path)
    assert Path(found(check, tmp_path).evidence).parent == Path(sys.executable).parent


def test_load__what_is_shipped() -> None:
    checks = {check.name: check for check in plugins.load(ROOT / "plugins")}
    assert {name: check.cost.value for name, check in checks.items()} == {
        "plugin/bug_report.py": "light",
        "plugin/dcgmi.py": "light",
        "plugin/idle_pods.py": "light",
        "plugin/nccl_tests.py": "heavy",
    }
    assert "plugin/nccl_tests.py" not in {
        check.name for check in schedule.scheduled((), tuple(checks.values()), InspectionOptions())
    }
