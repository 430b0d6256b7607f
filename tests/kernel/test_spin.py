"""A loop in place is distinguished from a computation by the registers that the sampler shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.kernel import ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.sampling import REGISTER_SAMPLES
from tests.kernel.helpers import watch

LOOP = "while True: pass"
# the naive triple loop of a matrix product: one small piece of machine code, as tight as the loop above
COMPUTATION = "import numpy\nmatrix = numpy.ones((96, 96))\nwhile True: matrix @ matrix"


@contextmanager
def running(program: str) -> Iterator[Pid]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    )
    try:
        time.sleep(1)
        yield Pid(process.pid)
    finally:
        process.kill()
        process.wait()


def passes(program: str) -> Iterator[ThreadHistory]:
    """What is known of the program after each pass, a quarter of a second apart."""
    table = SyscallTable(os.uname().machine)
    thread: ThreadHistory | None = None
    with KernelSampler.open(Settings()) as kernel, running(program) as pid:
        watch(kernel, pid)
        for _ in range(120):
            for fact in kernel.sample([]):
                if isinstance(fact, ThreadSample) and int(fact.tid) == int(pid):
                    if thread is None:
                        thread = ThreadHistory(fact)
                    else:
                        thread.observe(fact, table)
            if thread is not None:
                yield thread
            time.sleep(0.25)


def test_a_loop_in_place_is_seen_to_be_one() -> None:
    """On a busy machine its first samples may still be those of an interpreter that starts."""
    assert any(view.burning_since_ns is not None and view.spins_in_place for view in passes(LOOP))


def test_a_computation_is_never_taken_for_a_loop_in_place() -> None:
    seen = 0
    for view in passes(COMPUTATION):
        assert not view.spins_in_place
        seen += view.burning_since_ns is not None and not view.seen_too_seldom
        if seen >= REGISTER_SAMPLES:
            return
    pytest.fail("it was not found running often enough")
