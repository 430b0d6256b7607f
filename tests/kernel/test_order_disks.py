"""Ranks that were stopped are let go with a disk that is really full, and with one that is really read-only."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.order import Verb

from .order_bench import Bench, wait_until

pytestmark = pytest.mark.needs("root", "cgroup2")
_DISK_KIB = 64


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


@pytest.fixture
def disk(bench: Bench) -> Iterator[Path]:
    """Its own file system below the agent's state."""
    mount("-t", "tmpfs", "-o", f"size={_DISK_KIB}k", "state", bench.folder)
    yield bench.folder
    subprocess.run(["umount", bench.folder], check=True)


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="space"):
        (disk / "ballast").write_bytes(bytes(2 * _DISK_KIB * 1024))


def make_read_only(disk: Path) -> None:
    mount("-o", "remount,ro", disk)


BREAK = pytest.mark.parametrize("spoil", [fill, make_read_only])
Spoil = Callable[[Path], None]


@BREAK
def test_a_stop_is_refused_on_a_spoilt_disk(bench: Bench, disk: Path, spoil: Spoil) -> None:
    """What cannot be written down would be forgotten by the next agent."""
    pod = bench.pod("a")
    spoil(disk)
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.result is AckResult.REFUSED
    assert "T" not in pod.states()


@pytest.mark.alone  # its pods are to be stopped all at once
@BREAK
def test_a_stop_expires(bench: Bench, disk: Path, spoil: Spoil) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    assert pod.states() == "TTT"
    spoil(disk)
    bench.now_s += 11
    bench.executor.expire()
    wait_until(lambda: "T" not in pod.states())


@BREAK
def test_a_resume_is_obeyed(bench: Bench, disk: Path, spoil: Spoil) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    spoil(disk)
    ack = bench.order(Verb.RESUME, "2")
    assert ack is not None
    assert (ack.result, ack.processes) == (AckResult.DONE, 3)
    wait_until(lambda: "T" not in pod.states())


@BREAK
def test_an_agent_that_ends_leaves_no_process_stopped(
    bench: Bench,
    disk: Path,
    spoil: Spoil,
) -> None:
    """As at SIGTERM, which `helm uninstall` sends: the main thread closes the executor."""
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    spoil(disk)
    thread = threading.Thread(target=bench.executor.run)
    thread.start()
    bench.executor.close()
    wait_until(lambda: "T" not in pod.states())
    thread.join()


@BREAK
def test_the_next_agent_lets_go_of_what_a_killed_one_stopped(
    bench: Bench,
    disk: Path,
    spoil: Spoil,
) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    spoil(disk)
    bench.now_s += 11
    bench.new_executor().expire()
    wait_until(lambda: "T" not in pod.states())
