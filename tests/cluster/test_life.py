"""tools/testbed up and down, on a test bed of their own: nothing is left, whatever happened."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cluster import cgroups, state
from testbed.cluster.layout import Bed
from testbed.driver.cluster import ROOT

NAME = "life"
TESTBED = str(ROOT / "tools/testbed")
UP = [TESTBED, "up", "--name", NAME, "--controllers", "none"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [TESTBED, words[0], "--name", NAME, *words[1:]]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def left(bed: Bed) -> list[str]:
    """What of the test bed is still on this machine."""
    found = [str(path) for path in (bed.folder, bed.mark) if os.path.lexists(path)]
    found += [str(path) for path in Path("/run/netns").glob(f"{bed.prefix}-*")]
    found += [str(top / bed.cgroup) for top in cgroups.hierarchies() if (top / bed.cgroup).exists()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mounts").read_text()
            words = (process / "cmdline").read_text()
        except OSError:
            continue
        if f"{bed.folder}/" in mounts or f"{bed.folder}/" in words:
            found.append(f"{process}: {words}")
    return found


@pytest.fixture
def bed() -> Iterator[Bed]:
    mine = Bed.of_checkout(NAME)
    assert command("down").returncode == 0
    yield mine
    command("down")


@pytest.mark.timeout(1800, func_only=True)
def test_a_testbed_is_repaired_rebooted_and_taken_down(bed: Bed) -> None:
    assert command("status").returncode == 1
    first = command("up", "--controllers", "none", "--nodes", "1")
    assert first.returncode == 0, first.stderr
    running = state.load(bed)
    assert running is not None
    again = command("up", "--controllers", "none")
    assert again.returncode == 0, again.stderr
    repeated = state.load(bed)
    assert repeated is not None
    assert repeated.processes == running.processes, "a second up leaves everything alone"

    os.kill(running.processes["node1-kubelet"].pid, signal.SIGKILL)
    assert command("status").returncode == 1
    assert command("up", "--controllers", "none").returncode == 0
    assert command("status", "-o", "json").returncode == 0

    assert command("reboot", "node1").returncode == 0
    rebooted = state.load(bed)
    assert rebooted is not None
    assert not running.processes["node1-holder"].alive()
    assert rebooted.processes["node1-holder"].alive()
    assert rebooted.processes["etcd"] == running.processes["etcd"]

    assert command("up", "--kubernetes", "1.34").returncode == 2
    assert command("down").returncode == 0
    assert left(bed) == []


@pytest.mark.parametrize("until", ["etcd", "kube-apiserver", "node1-holder"])
def test_an_up_that_was_killed_leaves_nothing_after_down(bed: Bed, until: str) -> None:
    with subprocess.Popen(UP, stdout=subprocess.DEVNULL, start_new_session=True) as up:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            running = state.load(bed)
            if running is not None and until in running.processes:
                break
            time.sleep(0.05)
        os.killpg(up.pid, signal.SIGKILL)
    assert left(bed) != []
    assert command("down").returncode == 0
    assert left(bed) == []
