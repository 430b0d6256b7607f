"""The bench's ranks that wait for devices: they train together in each way of waiting, and their NCCL answers."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.collectives.ras import client
from kcover_ebpf.collectives.ras.client import RasPatience, RasPlace
from kcover_ebpf.ids import Pid
from testbed.skips import ROOT
from testbed.workloads.gpu_styles import STYLES
from tests.waiting import until

WORLD, STEPS, LAST = 2, 4, 3

pytestmark = [pytest.mark.needs("torch", "gcc"), pytest.mark.alone]


def job(folder: Path, style: str, *more: str) -> subprocess.Popen[bytes]:
    command = [str(ROOT / "testbed/workloads/launch"), "--framework", style, "--world", str(WORLD)]
    command += ["--events", str(folder / "events"), "--", "--step-s", "0.1", *more]
    return subprocess.Popen(command)


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


@contextmanager
def asleep(folder: Path, style: str) -> Iterator[None]:
    """A job whose rank 1 made so many steps and sleeps."""
    faulty = ("--inject", "sleep", "--inject-rank", "1", "--inject-step", str(LAST))
    started = job(folder, style, "--cpu-share", "0.4", *faulty)
    try:
        until(lambda: any(event["event"] == "fault" for event in events(folder)), "the fault")
        yield
    finally:
        started.terminate()
        started.wait(30)


@pytest.mark.parametrize("style", STYLES)
def test_ranks_train_to_the_end(tmp_path: Path, style: str) -> None:
    started = job(tmp_path, style, "--steps", str(STEPS), "--cpu-share", "0.4")
    assert started.wait(100) == 0
    counts = Counter((event["event"], event["rank"]) for event in events(tmp_path))
    assert [counts["step", rank] for rank in range(WORLD)] == [STEPS] * WORLD
    assert [counts["done", rank] for rank in range(WORLD)] == [1] * WORLD


@pytest.mark.parametrize("style", STYLES)
def test_no_rank_passes_one_that_does_not_launch(tmp_path: Path, style: str) -> None:
    with asleep(tmp_path, style):
        time.sleep(1)
        steps = Counter(event["rank"] for event in events(tmp_path) if event["event"] == "step")
        assert steps == {0: LAST, 1: LAST}


def test_nccl_answers_for_all_ranks_who_is_behind(tmp_path: Path) -> None:
    with asleep(tmp_path, "cuda-spin"):
        pids = {
            event["rank"]: int(event["pid"])
            for event in events(tmp_path)
            if event["event"] == "start"
        }
        environ = Path(f"/proc/{pids[0]}/environ").read_bytes().decode().split("\0")
        address = next(text for text in environ if text.startswith("NCCL_RAS_ADDR="))
        members = {pid: Pid(pid) for pid in pids.values()}
        place = RasPlace(("127.0.0.1", client.port_of(address)), Pid(pids[0]), members)

        def counts() -> dict[int, int]:
            (communicator,) = client.ask(place, RasPatience()).communicators
            return {rank.rank: rank.total for rank in communicator.ranks}

        until(lambda: counts()[0] == counts()[1] + 1, "rank 0 to launch what rank 1 does not")
