"""NVIDIA's bug report after a fatal Xid, by a program in a root of its own that can hang."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from kcover_ebpf.agent.node_health import bug_report
from kcover_ebpf.agent.node_health.bug_report import BugReportOptions, BugReports
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from testbed.skips import ROOT

pytestmark = pytest.mark.needs("gcc", "root")

XID = ReportedDeviceFault(
    "0000:5d:00.0", "xid_79", "fell off the bus", uuid="GPU-0", serial="165", fatal=True, unfit=True
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("script") / "nvidia-bug-report.sh"
    source = ROOT / "testbed/faults/bug_report.c"
    subprocess.run(["gcc", "-static", "-o", str(target), str(source)], check=True, timeout=60)
    return target


class Host:
    def __init__(self, root: Path, program: Path, folder: str = "usr/bin") -> None:
        self.root, self.bundles = root / "host", root / "bundles"
        self.inside = self.root / folder.partition("usr/")[0]
        script = self.root / folder / program.name
        script.parent.mkdir(parents=True)
        (self.inside / "tmp").mkdir()
        script.hardlink_to(program)

    def reports(self, deadline_s: float = 60) -> BugReports:
        return BugReports(BugReportOptions(self.bundles, self.root, deadline_s))

    @property
    def run_count(self) -> int:
        runs = self.inside / "runs"
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    @property
    def kept(self) -> list[Path]:
        return sorted(self.bundles.glob("*Z-node-*"))


def made(reports: BugReports, *faults: ReportedDeviceFault) -> None:
    reports.want(faults)
    reports.join(60)


@pytest.mark.parametrize("folder", ["usr/bin", "run/nvidia/driver/usr/bin"])
def test_bug_reports__one_report_is_kept_with_its_faults(
    tmp_path: Path, program: Path, folder: str
) -> None:
    host = Host(tmp_path, program, folder)
    reports = host.reports()
    made(reports, XID)
    (bundle,) = host.kept
    assert (bundle / "nvidia-bug-report.log.gz").read_text() == "a report\n"
    assert (bundle / "nvidia-bug-report.log.gz").stat().st_mode & 0o777 == 0o600
    (fault,) = json.loads((bundle / "faults.json").read_text())
    assert (fault["fault"], fault["uuid"], fault["serial"]) == ("xid_79", "GPU-0", "165")
    assert list((host.inside / "tmp").iterdir()) == [], "nothing stays on the host"
    assert (host.inside / "runs").read_text() == "--safe-mode\n"


def test_bug_reports__a_fault_has_one_report_and_a_storm_as_well(
    tmp_path: Path, program: Path
) -> None:
    host = Host(tmp_path, program)
    reports = host.reports()
    for _ in range(3):
        made(reports, XID)
    made(reports, XID, replace(XID, device="0000:5e:00.0"))
    assert host.run_count == 1
    made(host.reports(), XID)
    assert host.run_count == 1, "the next agent finds it"


def test_bug_reports__what_could_not_be_kept_whole_is_made_again(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, program)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(shutil, "copyfile", Mock(side_effect=OSError(28, "full")))
        made(host.reports(), XID)
    assert host.kept == []
    made(host.reports(), XID)
    assert [path.name for path in host.kept[0].glob("*.gz")] == ["nvidia-bug-report.log.gz"]


@pytest.mark.parametrize(
    "fault",
    [
        replace(XID, fatal=False, unfit=False),
        replace(XID, fault="aer_fatal"),
        replace(XID, fault="port_down"),
    ],
)
def test_bug_reports__other_faults_have_none(
    tmp_path: Path, program: Path, fault: ReportedDeviceFault
) -> None:
    host = Host(tmp_path, program)
    made(host.reports(), fault)
    assert host.run_count == 0


def test_bug_reports__a_script_that_hangs_is_ended_and_what_it_wrote_is_kept(
    tmp_path: Path, program: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(tmp_path, program)
    (host.root / "mode").write_text("hang")
    with caplog.at_level(logging.INFO):
        made(host.reports(deadline_s=2), XID)
    (bundle,) = host.kept
    assert (bundle / "nvidia-bug-report.log").read_text() == "a report\n"
    assert "bug report (cut short) in" in caplog.text


@pytest.mark.parametrize(
    ("mode", "words"),
    [("nothing", "the bug report is empty"), ("", "was not kept"), (None, "is not on this node")],
)
def test_bug_reports__why_there_is_none(
    tmp_path: Path,
    program: Path,
    mode: str | None,
    words: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bug_report, "_MOST_BYTES", 3)
    host = Host(tmp_path, program)
    (host.root / "mode").write_text(mode or "")
    if mode is None:
        (host.root / "usr/bin" / program.name).unlink()
    with caplog.at_level(logging.INFO):
        made(host.reports(), XID)
    assert words in caplog.text
    assert host.kept == []
