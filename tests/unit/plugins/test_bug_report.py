"""The plug-in that has NVIDIA's bug report made after a fatal Xid, by a program in a separate root that can hang."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kcover_ebpf.devices.xid import kmsg_reader
from plugins import bug_report
from testbed.skips import ROOT
from tests.waiting import until

pytestmark = pytest.mark.needs("gcc", "root")

LOST = b"4,7,1000000,-;NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus."
OTHER = LOST.replace(b"5d", b"5e")
MILD = b"4,8,2000000,-;NVRM: Xid (PCI:0000:5d:00): 13, pid=1, name=python, Graphics Exception"
FORGED = LOST.replace(b"4,7", b"12,7")
BEGUN, KEPT = bug_report.PROBLEM, bug_report.PASS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("script") / "nvidia-bug-report.sh"
    source = ROOT / "testbed/faults/bug_report.c"
    subprocess.run(["gcc", "-static", "-o", str(target), str(source)], check=True, timeout=60)
    return target


class Host:
    """Its files, the lines of its kernel, and what the script left."""

    def __init__(self, root: Path, program: Path, folder: str) -> None:
        self.root, self.lines = root, [LOST]
        self.inside = root / folder.partition("usr/")[0]
        self.script = root / folder / program.name
        for path in (self.script.parent, self.inside / "var/tmp", root / "proc/sys/kernel/random"):
            path.mkdir(parents=True)
        self.script.hardlink_to(program)
        (root / "proc/sys/kernel/random/boot_id").write_text("0badcafe-1111\n")

    def examine(self) -> tuple[int, str]:
        return bug_report.examine(self.root)

    @property
    def runs(self) -> int:
        runs = self.inside / "runs"
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    def reports(self) -> list[Path]:
        return sorted((self.inside / "var/tmp").glob("*.log*"))

    def age(self) -> None:
        for path in self.reports():
            os.utime(path, (time.time() - 4000.0,) * 2)


@pytest.fixture
def make(tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    def made(folder: str = "usr/bin") -> Host:
        host = Host(tmp_path / "host", program, folder)
        monkeypatch.setattr(kmsg_reader, "stored", lambda _: iter(host.lines))
        return host

    return made


@pytest.mark.parametrize("folder", ["usr/bin", "run/nvidia/driver/usr/bin"])
def test_bug_report__one_is_made_where_the_script_is(
    make: Callable[..., Host], folder: str
) -> None:
    host = make(folder)
    code, evidence = host.examine()
    report = host.inside / "var/tmp/kcover-0badcafe-0000_5d_00.0-xid79.log"
    assert (code, evidence) == (BEGUN, f"a bug report is being written: {report}")
    packed = report.with_name(f"{report.name}.gz")
    until(lambda: packed.exists() and packed.read_text() == "a report\n")
    assert packed.stat().st_mode & 0o777 == 0o600
    assert (host.inside / "runs").read_text() == "--safe-mode\n"


def test_bug_report__a_fault_has_one_and_a_storm_as_well(make: Callable[..., Host]) -> None:
    host = make()
    assert host.examine()[0] == BEGUN
    until(lambda: len(host.reports()) == 2)
    assert host.examine()[0] == KEPT
    host.lines.append(OTHER)
    assert host.examine() == (KEPT, f"a report of the last hour is in {host.inside / 'var/tmp'}")
    host.age()
    assert host.examine()[0] == BEGUN, "another device, an hour later"
    until(lambda: host.runs == 2)
    host.age()
    assert host.examine()[0] == KEPT


def test_bug_report__one_that_hangs_is_not_begun_again(
    make: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bug_report, "_LONGEST_S", 1)
    host = make()
    (host.root / "mode").write_text("hang")
    assert host.examine()[0] == BEGUN
    until(lambda: any(path.suffix == ".log" for path in host.reports()))
    host.age()
    assert host.examine()[0] == KEPT
    until(lambda: not running(host.root))
    assert host.runs == 1


def running(root: Path) -> list[str]:
    found = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in found if is_below(pid, root)]


def is_below(pid: str, root: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/root").readlink() == root
    except OSError:
        return False


@pytest.mark.parametrize("lines", [[], [MILD], [FORGED], [b"4,9,1,-;usb 1-1: new device"]])
def test_bug_report__nothing_else_has_one(make: Callable[..., Host], lines: list[bytes]) -> None:
    host = make()
    host.lines[:] = lines
    assert host.examine() == (bug_report.PASS, "no fatal Xid since the boot")
    assert host.runs == 0


def test_bug_report__why_there_is_none(
    make: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make()
    host.script.unlink()
    code, evidence = host.examine()
    assert (code, "is not on this node" in evidence) == (bug_report.UNKNOWN, True)
    monkeypatch.undo()
    code, evidence = host.examine()
    assert (code, evidence) == (
        bug_report.UNKNOWN,
        "/dev/kmsg cannot be read: No such file or directory",
    )
