"""The wait table of a verdict, and what a verdict says it could not see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.verdict import WaitRow
from kcover_ebpf.diagnosis.wait_table import gives_up_after_s, unobserved
from kcover_ebpf.facts.host import CodeSeen
from kcover_ebpf.ids import Pid, Tid

from .scripted_job import LOCK, NS, Proc, Stage, all_wait, pipe, trained


def rows_after(stage: Stage, seconds: float) -> list[WaitRow]:
    verdict = stage.run(seconds)
    assert verdict is not None
    return list(verdict.waits)


def test_one_row_a_rank_in_order_with_culprit_and_victims() -> None:
    stage = trained()
    stage.become(stage.rank(2), "futex", stack=LOCK)
    all_wait(stage, 2)
    rows = rows_after(stage, 8)
    assert [(row.rank, row.pid, row.note) for row in rows] == [
        (0, 100, "victim"),
        (1, 101, "victim"),
        (2, 102, "culprit"),
        (3, 103, "victim"),
    ]
    assert all(row.wait.startswith("futex") and 1 < row.since_s < 9 for row in rows)


def test_a_loader_has_a_row_only_if_it_explains_the_wait() -> None:
    stage = trained()
    stage.add(Proc(501, ppid=101))
    idle = stage.add(Proc(502, ppid=101))
    stage.run(5)
    stage.become(idle, "futex", timed=True)
    end_ns = stage.now_ns + 10**9 * NS
    stage.become(stage.procs[501], "sleep_long", timed=True, deadline_ns=end_ns)
    waited = pipe(stage, stage.procs[501], 1, 77)
    stage.become(stage.rank(1), "poll", files=(replace(waited, fd=9),))
    all_wait(stage, 1)
    rows = rows_after(stage, 12)
    assert [(row.rank, row.pid, row.role) for row in rows] == [
        (0, 100, "rank"),
        (1, 101, "rank"),
        (1, 501, "loader"),
        (2, 102, "rank"),
        (3, 103, "rank"),
    ]


@pytest.mark.parametrize(
    ("module", "limit_s"),
    [("libnccl.so.2", 600), ("libtorch_cpu.so", 1800), ("jaxlib.so", 100), ("libmpi.so", None)],
)
def test_when_the_framework_gives_up(module: str, limit_s: float | None) -> None:
    stage = Stage()
    stage.job.attention.known.learn((f"{module}+1", "libc.so.6+2"))
    assert gives_up_after_s(stage.job) == limit_s


def test_unobserved__ranks_elsewhere_and_devices_that_processes_have_open() -> None:
    stage = trained()
    assert unobserved(stage.job) == ()
    gpu = frozenset({"/dev/nvidia0"})
    stage.tell(CodeSeen(stage.now_ns, Pid(100), Tid(100), (), devices=gpu))
    assert [text.split(":")[0] for text in unobserved(stage.job)] == ["GPU activity"]
    stage.job.members.world_size = 8
    stage.rank(1).devices = frozenset({"/dev/infiniband/uverbs0"})
    stage.become(stage.rank(2), "futex", stack=LOCK)
    all_wait(stage, 2)
    verdict = stage.run(8)
    assert verdict is not None
    said = " | ".join(verdict.unobserved)
    assert "4 of 8 ranks are not on this host" in said
    assert "RDMA" in said
