"""A loop in place is distinguished from a computation by the registers that the sampler shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kcover_ebpf.diagnosis.thread import ThreadHistory
from kcover_ebpf.facts.kernel import ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
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


@pytest.mark.parametrize(("program", "in_place"), [(LOOP, True), (COMPUTATION, False)])
def test_a_loop_in_place_is_distinguished_from_a_computation(program: str, in_place: bool) -> None:
    table = SyscallTable(os.uname().machine)
    view: ThreadHistory | None = None
    with KernelSampler.open(Settings()) as kernel, running(program) as pid:
        watch(kernel, pid)
        for _ in range(20):
            for fact in kernel.sample([]):
                if isinstance(fact, ThreadSample) and int(fact.tid) == int(pid):
                    if view is None:
                        view = ThreadHistory(fact)
                    else:
                        view.observe(fact, table)
            time.sleep(0.25)
    assert view is not None
    assert view.burning_since_ns is not None
    assert view.spins_in_place is in_place
