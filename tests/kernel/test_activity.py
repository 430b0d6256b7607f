"""Loops that grow, call or allocate are distinguished from one that only computes by counters of their own thread."""

import os
import sys
import time
from itertools import pairwise

import pytest

from kcover_ebpf.diagnosis.history.activity import is_active
from kcover_ebpf.facts.kernel import ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import of_kind, running, watch

PASSES, PAUSE_S = 8, 0.25
LOOPS = {
    "computes": ("pass", False),
    "reuses memory": ("bytes(4096)", False),
    "grows": ("kept.append(bytes(64))", True),
    "gives memory back": ("bytes(1 << 26)", True),
    "writes": ("os.write(null, b'x')", True),
}


@pytest.mark.parametrize(("body", "acts"), LOOPS.values(), ids=LOOPS)
def test_a_loop_that_does_more_than_compute_is_active(
    kernel: KernelSampler, body: str, acts: bool
) -> None:
    table = SyscallTable(os.uname().machine)
    program = (
        "import os\nkept, null = [], os.open('/dev/null', os.O_WRONLY)\n"
        f"print(flush=True)\nwhile True: {body}"
    )
    with running(sys.executable, "-c", program) as target:
        target.line()
        time.sleep(0.3)
        watch(kernel, target.pid)
        samples = []
        for _ in range(PASSES):
            time.sleep(PAUSE_S)
            samples += of_kind(kernel.sample([]), ThreadSample)
    assert len(samples) == PASSES
    found = [is_active(first, last, table, sides_run=False) for first, last in pairwise(samples)]
    assert found == [acts] * (PASSES - 1)
