"""The process that resumes what is stopped: until when it holds processes. The real program, and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.agent.orders.resumer import Resumer
from kcover_ebpf.host.procfs import task_state

LONGEST_S = 2.0


@pytest.fixture
def resumer() -> Iterator[Resumer]:
    made = Resumer(LONGEST_S)
    made.start()
    yield made
    made.close()


@pytest.fixture
def pids() -> Iterator[tuple[int, int]]:
    """Two processes that do nothing."""
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        yield first.pid, second.pid
        first.kill()
        second.kill()


def stop(resumer: Resumer, *pids: int, incident: str = "i") -> None:
    """As an order to stop does, and one that renews it."""
    pinned = {pid: os.pidfd_open(pid) for pid in pids}
    resumer.hold(incident, pinned)
    for descriptor in pinned.values():
        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        os.close(descriptor)


def stopped_s(pid: int, begun_s: float, within_s: float) -> float:
    """Seconds since `begun_s` (monotonic) until the process runs, or until `within_s` are over."""
    while time.monotonic() < begun_s + within_s and task_state(pid) == "T":
        time.sleep(0.01)
    return time.monotonic() - begun_s


def wait_until_stopped(pid: int) -> None:
    deadline_s = time.monotonic() + 10
    while task_state(pid) != "T":
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_hold__a_renewed_stop_lasts_as_long_as_a_first_one(
    resumer: Resumer, pids: tuple[int, int]
) -> None:
    begun_s = time.monotonic()
    stop(resumer, *pids)
    wait_until_stopped(pids[0])
    time.sleep(max(0.0, begun_s + 0.6 * LONGEST_S - time.monotonic()))
    renewed_s = time.monotonic()
    # the other one is no longer found: it is held with those of the same incident, and no longer than they are
    stop(resumer, pids[0])
    assert stopped_s(pids[0], renewed_s, 10) >= LONGEST_S
    assert stopped_s(pids[1], renewed_s, 10) < 10


def test_hold__a_renewed_stop_extends_no_stop_of_another_incident(
    resumer: Resumer, pids: tuple[int, int]
) -> None:
    begun_s = time.monotonic()
    stop(resumer, pids[0], incident="i")
    stop(resumer, pids[1], incident="j")
    wait_until_stopped(pids[1])
    while task_state(pids[1]) == "T":
        assert time.monotonic() < begun_s + 10
        stop(resumer, pids[0], incident="i")
        time.sleep(0.05)
    assert time.monotonic() - begun_s >= LONGEST_S
    assert task_state(pids[0]) == "T"


def test_hold__a_renewed_stop_keeps_no_second_descriptor_of_a_process(
    resumer: Resumer, pids: tuple[int, int]
) -> None:
    stop(resumer, *pids)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        stop(resumer, *pids)
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_tend__a_resumer_that_is_restarted_holds_nothing_for_longer(
    resumer: Resumer, pids: tuple[int, int]
) -> None:
    begun_s = time.monotonic()
    stop(resumer, *pids)
    wait_until_stopped(pids[0])
    time.sleep(max(0.0, begun_s + 0.8 * LONGEST_S - time.monotonic()))
    first = resumer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    while resumer.pid in (None, first):
        resumer.tend()
    handed_s = time.monotonic()
    assert stopped_s(pids[0], handed_s, 10) < LONGEST_S


def test_drop__a_resume_ends_a_renewed_stop(resumer: Resumer, pids: tuple[int, int]) -> None:
    stop(resumer, *pids)
    stop(resumer, *pids)
    resumer.drop("i")
    # something else stops it now: it is not resumed by us
    wait_until_stopped(pids[0])
    assert stopped_s(pids[0], time.monotonic(), 1.2 * LONGEST_S) >= LONGEST_S
