"""Ranks are asked for core dumps of their GPUs through real pipes; a stub process stands for their driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcover_ebpf.model.traced import GpuKernel
from kcover_ebpf.trace.gpu_kernels import KernelReading
from tests.unit.support.fake_cuda_dump import DRIVER, FLAGS, SECRET, code, dump, grid

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a rank with a driver that listens; its pid."""
    (tmp_path / "dump").write_bytes(dump(grid(0x1000, 1), modules=[(1, code((b"spin", 0x1000)))]))
    processes: list[subprocess.Popen[bytes]] = []

    def begin(**environ: str) -> int:
        number = len(processes)
        pipe, file = tmp_path / f"pipe{number}", tmp_path / f"core{number}"
        found = {
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "CUDA_COREDUMP_PIPE": str(pipe),
            "CUDA_COREDUMP_FILE": str(file),
            "CUDA_COREDUMP_GENERATION_FLAGS": FLAGS,
        } | environ
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, pipe, file, tmp_path / "dump"],
            env={name: value for name, value in found.items() if value},
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        return process.pid

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def read(*pids: int, limit_s: float = 10.0) -> tuple[tuple[GpuKernel, ...], str]:
    ranks = {pid: number for number, pid in enumerate(pids)}
    kernels, unread = KernelReading(pids, limit_s).finish(ranks, time.monotonic() + limit_s + 10)
    return kernels, "; ".join(unread)


def test_kernel_reading__each_rank_with_a_pipe_is_asked_and_its_kernel_named(
    start: Start, tmp_path: Path
) -> None:
    pids = start(), start()
    kernels, unread = read(*pids)
    assert unread == ""
    assert sorted((kernel.rank, kernel.pid, kernel.name) for kernel in kernels) == [
        (0, pids[0], "spin"),
        (1, pids[1], "spin"),
    ]
    assert SECRET in (tmp_path / "core0").read_bytes(), "what a dump may hold"
    assert SECRET.decode() not in repr(kernels)


NOT_ASKED = {
    "its driver does not listen": {"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "0"},
    "lacks skip_abort": {"CUDA_COREDUMP_GENERATION_FLAGS": FLAGS.replace(",skip_abort", "")},
    "lacks skip_global_memory": {
        "CUDA_COREDUMP_GENERATION_FLAGS": FLAGS.replace("skip_global_memory,", "")
    },
    "the path of the dump is unknown": {"CUDA_COREDUMP_FILE": "core.%t"},
    "no rank has a pipe": {"CUDA_COREDUMP_PIPE": ""},
    "is not a plain path": {"CUDA_COREDUMP_PIPE": "../../etc/pipe"},
    "is not a named pipe": {"CUDA_COREDUMP_PIPE": "/etc/passwd"},
}


@pytest.mark.parametrize("why", NOT_ASKED)
def test_kernel_reading__a_rank_that_a_dump_would_harm_is_not_asked(
    why: str, start: Start, tmp_path: Path
) -> None:
    kernels, unread = read(start(**NOT_ASKED[why]))
    assert kernels == ()
    assert why in unread
    assert not (tmp_path / "core0").exists()


def test_kernel_reading__a_driver_that_does_not_answer_costs_no_more_than_its_time(
    start: Start, tmp_path: Path
) -> None:
    pid = start()
    os.kill(pid, 19)
    kernels, unread = read(pid, limit_s=0.3)
    assert kernels == ()
    assert unread == "kernels of the GPU of rank 0 (no dump was written in time)"


def test_kernel_reading__a_dump_of_before_is_not_taken_for_the_answer(
    start: Start, tmp_path: Path
) -> None:
    pid = start()
    (tmp_path / "core0").write_bytes((tmp_path / "dump").read_bytes())
    os.kill(pid, 19)
    assert read(pid, limit_s=0.3)[0] == ()
