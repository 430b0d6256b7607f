"""node-problem-detector, built from its module, beside us in one guest: both read the log, neither takes a line away.

It runs without a cluster, so its conditions are what its metrics say they are.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peerbench import daemons
from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.reader import LogReader
from tests.vm.conftest import GPU, needs_driver
from tests.vm.guest import Guest
from tests.vm.sensing import PATIENCE_S, Observer, known_lines, logged_as, of_kind

pytestmark = [pytest.mark.family("npd"), pytest.mark.needs("go")]

PORT = 20257
HANGING = """
import ctypes, fcntl, os
ctypes.CDLL(None).prctl(15, b"docker")
fcntl.ioctl(os.open("/dev/nvidia0", os.O_RDWR), 102, 60_000)
"""
"""PR_SET_NAME: a rule of its kernel monitor knows a container runtime that hangs by this name."""


@pytest.fixture(scope="module")
def built() -> tuple[Path, Path]:
    """The program, and its folder of configuration files."""
    return daemons.npd()


@pytest.fixture
def detector(guest: Guest, built: tuple[Path, Path]) -> Iterator[Path]:
    """It runs, with its own kernel monitor, whose file is the value."""
    program, folder = built
    file = folder / "kernel-monitor.json"
    pid = guest.start(
        *(str(program), f"--config.system-log-monitor={file}", "--enable-k8s-exporter=false"),
        *(f"--prometheus-port={PORT}", "--port=0"),
        log="/share/npd.log",
    )
    metric(guest, "problem_gauge", "KernelHasNoDeadlock|DockerHung", 0)
    yield file
    guest.run("/bin/kill", str(pid))


def metric(guest: Guest, name: str, reason: str, at_least: int) -> None:
    """Wait until a metric with this reason has a value."""
    wanted = re.compile(rf'^{name}\{{[^}}]*reason="(?:{reason})"[^}}]*\}} (\d+)', re.MULTILINE)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        page = guest.run("/bin/busybox", "wget", "-qO-", f"http://127.0.0.1:{PORT}/metrics").output
        if any(int(value) >= at_least for value in wanted.findall(page)):
            return
        if time.monotonic() > deadline:
            log = (guest.share / "npd.log").read_text()[-2000:]
            lines = "\n".join(x for x in page.splitlines() if x.startswith("problem_"))
            pytest.fail(f"no {name} of {reason}:\n{lines}\n{log}", pytrace=False)
        time.sleep(1.0)


@needs_driver
def test_both_report_the_same_line_and_each_its_own(
    guest: Guest, observer: Observer, detector: Path
) -> None:
    guest.shell("sysctl -q kernel.hung_task_timeout_secs=3 kernel.hung_task_warnings=10; dmesg -C")
    guest.start("/usr/bin/python3", "-c", HANGING, log="/dev/null")
    ours = logged_as(guest, "hung_task")
    metric(guest, "problem_counter", "TaskHung", 1)
    metric(guest, "problem_gauge", "DockerHung", 1)
    guest.shell("sysctl -q kernel.hung_task_timeout_secs=120")
    assert (ours["concerns"], ours["lasting"]) == ("job", False)
    mark = observer.mark()
    guest.python(f"say('print NVRM: Xid (PCI:{GPU.removesuffix('.0')}): 48, beside the detector')")
    (fact,) = observer.facts("XidReported", 1, mark)
    assert (fact["number"], fact["confirmed"]) == (48, True)
    assert not of_kind(observer.lines()[mark:], "DeviceNotice")
    assert {line["rule"] for line in known_lines(guest)} >= {"hung_task"}
    reader = LogReader(rules.load(detector), shipped(), source=Source.KERNEL)
    assert {match.rule for match in reader.feed(f"{ours['line']}\n".encode())} == {"TaskHung"}


def test_its_log_monitors_are_read_as_rules(built: tuple[Path, Path]) -> None:
    """One of them is no JSON at all: a comma too many."""
    files = (x for x in built[1].glob("*.json") if x.name != "disk-log-message-filelog.json")
    monitors = {file: json.loads(file.read_text()) for file in files}
    read = {
        file: [rule["reason"] for rule in monitor["rules"]]
        for file, monitor in monitors.items()
        if monitor.get("plugin") in ("kmsg", "journald", "filelog", "abrt")
    }
    ours = {
        file: [rule.name for rule in rules.load(file)[: len(reasons)]]
        for file, reasons in read.items()
    }
    assert ours == read != {}
