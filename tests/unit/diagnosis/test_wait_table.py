"""The wait table of a verdict, and what a verdict says it could not see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.wait_table import gives_up_after_s, unobserved
from kcover_ebpf.facts.host import CodeSeen, ThreadReading
from kcover_ebpf.facts.kernel import ProcessExec
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.verdict import WaitRow
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, pipe, trained


def rows_after(stage: Stage, seconds: float) -> list[WaitRow]:
    verdict = stage.run(seconds)
    assert verdict is not None
    return list(verdict.waits)


def test_wait_table__one_row_a_rank_in_order_with_culprit_and_victims() -> None:
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


def test_wait_table__a_loader_has_a_row_only_if_it_explains_the_wait() -> None:
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
def test_gives_up_after_s__when_the_framework_gives_up(module: str, limit_s: float | None) -> None:
    stage = Stage()
    stage.job.attention.known.learn((f"{module}+1", "libc.so.6+2"))
    assert gives_up_after_s(stage.job) == limit_s


def test_unobserved__what_was_not_seen_is_said() -> None:
    stage = trained()
    assert unobserved(stage.job) == ()
    gpu, port = frozenset({"/dev/nvidia0"}), frozenset({"/dev/infiniband/uverbs0"})
    stage.job.observe(CodeSeen(stage.now_ns, Pid(100), Tid(100), (), devices=gpu))
    assert "RDMA" not in " | ".join(unobserved(stage.job))
    stage.job.observe(
        ThreadReading(
            stage.now_ns, Pid(101), Tid(101), "", None, False, (), (), None, (), devices=port
        )
    )
    stage.job.members.world_size = 8
    said = " | ".join(unobserved(stage.job))
    assert "4 of 8 ranks are not on this host" in said
    assert "GPU" in said
    assert "RDMA" in said


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"/dev/kfd", "/dev/dri/renderD128"}, "GPU activity"),
        ({"/dev/infiniband/uverbs3"}, "RDMA traffic"),
        (set(), None),
    ],
)
def test_unobserved__names_what_the_open_devices_are_for(
    devices: set[str], words: str | None
) -> None:
    stage = trained()
    seen = CodeSeen(stage.now_ns, Pid(100), Tid(100), (), devices=frozenset(devices))
    stage.job.observe(seen)
    stage.job.observe(replace(seen, devices=None))
    said = [text for text in unobserved(stage.job) if "NCCL" not in text]
    assert [text.split(":")[0] for text in said] == ([] if words is None else [words])


def test_unobserved__devices_of_a_program_that_was_replaced_are_forgotten() -> None:
    stage = trained()
    gpu = frozenset({"/dev/nvidia0"})
    stage.job.observe(CodeSeen(stage.now_ns, Pid(100), Tid(100), (), devices=gpu))
    stage.job.observe(ProcessExec(stage.now_ns, Pid(100), "other"))
    assert unobserved(stage.job) == ()
