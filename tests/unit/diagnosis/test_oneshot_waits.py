"""Who a job waits for that was stuck before the trace began, by what the kernel remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.diagnosis import oneshot, oneshot_waits
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.history.links import Links
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.tunables.trace import STALL_S
from tests.unit.support.scripted_job import COLLECTIVE, LOCK, START_NS, Proc, Stage


class TracedStage:
    """A trace of so many seconds over ranks in these modes, the last data sent so long before it."""

    def __init__(
        self, modes: list[str], seconds: float, quiet_s: float = 30, **last: object
    ) -> None:
        self.history = PassHistory()
        self.stage = stage = Stage(world=0, now_ns=START_NS + 100 * NS)
        stage.world = len(modes)
        stage.job.pace.unlearned_s = STALL_S
        for rank, mode in enumerate(modes):
            proc = stage.add(Proc(100 + rank, rank=rank, mode=mode))
            proc.last_send_ns = stage.now_ns - int(quiet_s * NS)
        for name, value in last.items():
            setattr(stage.rank(len(modes) - 1), name, value)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Further passes."""
        for _ in range(int(4 * seconds)):
            self.stage.job.examine()
            self.stage.one_pass(NS // 4)
            self.history.note(self.stage.job)

    @property
    def found(self) -> Finding:
        """What `trace` makes of it."""
        found = oneshot.finding(self.stage.job, self.history)
        assert found is not None
        return found


SLEEPS: dict[str, Any] = {"timed": True, "deadline_ns": START_NS + 10**9 * NS}
FAULTS: dict[str, tuple[list[str], dict[str, Any], Cause]] = {
    "a loop beside ranks that ask without a CPU": (["starved"] * 3 + ["spin"], {}, Cause.SPINNING),
    "a sleep": (["starved"] * 3 + ["sleep_long"], SLEEPS, Cause.BLOCKED_SLEEP),
    "a lock": (["starved"] * 3 + ["futex"], {"stack": LOCK}, Cause.BLOCKED_LOCK),
    "ranks that ask with a CPU": (["yield", "yield", "spin"], {}, Cause.SPINNING),
}


@pytest.mark.parametrize("name", FAULTS)
def test_oneshot_waits__who_does_something_else_than_ask_is_the_culprit(name: str) -> None:
    modes, last, cause = FAULTS[name]
    found = TracedStage(modes, 6, **last).found
    assert (found.kind, found.cause, found.rank) == (VerdictKind.HUNG, cause, len(modes) - 1)


def test_oneshot_waits__who_alone_gets_no_cpu_has_a_limit_of_its_own() -> None:
    found = TracedStage(["yield", "yield", "throttled"], 6).found
    assert (found.kind, found.cause, found.rank) == (VerdictKind.SLOW, Cause.CPU_THROTTLED, 2)


def test_oneshot_waits__who_only_asks_is_not_slow_because_it_gets_no_cpu() -> None:
    found = TracedStage(["yield", "yield", "starved"], 4).found
    assert (found.kind, found.rank) == (VerdictKind.WORKING, None)


def test_oneshot_waits__who_asks_for_threads_of_its_own_that_compute_does_not_wait_for_peers() -> (
    None
):
    traced = TracedStage(["yield", "futex", "futex"], 0)
    traced.stage.rank(0).side_cpu = 0.3
    traced.advance(6)
    assert traced.history.asks_since_ns(Pid(100)) is None


def test_a_rank_waits__ranks_that_ask_are_traced_until_it_is_clear_whom() -> None:
    traced = TracedStage(["yield", "yield"], 3)
    assert oneshot.a_rank_waits(traced.stage.job, traced.history)
    traced.advance(4)
    assert traced.found.cause is Cause.WAIT_CYCLE
    talks = TracedStage(["yield", "yield"], 3, quiet_s=-1)
    assert not oneshot.a_rank_waits(talks.stage.job, talks.history)


@pytest.mark.parametrize("mode", ["run", "throttled"])
def test_oneshot_waits__who_computes_while_the_others_ask_is_named_but_not_accused(
    mode: str,
) -> None:
    found = TracedStage(["starved"] * 3 + [mode], 6).found
    assert (found.kind, found.cause, found.rank) == (VerdictKind.UNKNOWN, Cause.COMPUTING, 3)
    assert found.victims == (100, 101, 102)
    assert "no rank has sent anything" in "".join(evidence.text for evidence in found.evidence)


def test_oneshot_waits__no_rank_is_named_while_ranks_talk() -> None:
    traced = TracedStage(["starved"] * 3 + ["run"], 6, quiet_s=-1)
    for _ in range(24):
        for proc in traced.stage.procs.values():
            proc.last_send_ns = traced.stage.now_ns
        traced.advance(0.25)
    assert (traced.found.kind, traced.found.rank) == (VerdictKind.WORKING, None)


def test_quiet_since_ns__who_has_no_connection_to_another_rank_cannot_be_judged_by_them() -> None:
    traced = TracedStage(["starved"] * 3 + ["run"], 0)
    traced.stage.connected = False
    traced.advance(6)
    assert oneshot_waits.quiet_since_ns(traced.stage.job, traced.stage.job.snapshot()) is None
    assert traced.found.kind is VerdictKind.WORKING


def test_oneshot_waits__a_rank_that_never_sent_anything_is_quiet_as_well() -> None:
    traced = TracedStage(["starved"] * 3 + ["futex"], 6, stack=LOCK)
    stage = traced.stage
    stage.connected = False
    view = stage.job.members.views[Pid(103)]
    view.sockets, view.links = {}, Links()
    traced.advance(1)
    found = traced.found
    assert (found.kind, found.cause, found.rank) == (VerdictKind.HUNG, Cause.BLOCKED_LOCK, 3)


def test_oneshot_waits__waits_of_the_kernel_s_own_count_need_no_connections() -> None:
    traced = TracedStage(["futex", "futex", "run"], 0)
    traced.stage.connected = False
    traced.advance(12)
    assert (traced.found.kind, traced.found.rank) == (VerdictKind.UNKNOWN, 2)


def test_quiet_since_ns__what_a_rank_sends_to_itself_is_no_talk() -> None:
    traced = TracedStage(["futex", "futex"], 4, quiet_s=0)
    job = traced.stage.job
    view = job.members.views[Pid(100)]
    (known,) = view.sockets.values()
    ends = [("127.0.0.1", 7), ("127.0.0.1", 8)]
    for fd, (local, remote) in enumerate((ends, ends[::-1])):
        own = replace(known, fd=fd, local=local, remote=remote, last_send_ns=job.now_ns)
        view.on_socket(own)
    assert oneshot_waits.quiet_since_ns(job, job.snapshot()) == known.last_send_ns


def test_oneshot_waits__a_wait_that_is_not_long_enough_is_no_work() -> None:
    traced = TracedStage(["starved"] * 3 + ["futex"], 4, stack=LOCK)
    traced.stage.become(traced.stage.rank(3), "futex", stack=COLLECTIVE)
    traced.advance(2)
    assert (traced.found.kind, traced.found.rank) == (VerdictKind.WORKING, None)


def test_oneshot_waits__who_did_anything_else_in_between_does_not_only_ask() -> None:
    traced = TracedStage(["yield"], 3)
    assert traced.history.asks_since_ns(Pid(100))
    traced.stage.become(traced.stage.rank(0), "futex")
    traced.advance(0.25)
    traced.stage.become(traced.stage.rank(0), "yield")
    traced.advance(1.5)
    assert traced.history.asks_since_ns(Pid(100)) is None
    traced.advance(0.5)
    assert traced.history.asks_since_ns(Pid(100)) == traced.stage.now_ns - 7 * NS // 4


# how long the others have been seen waiting, how long none has sent anything; whether the one is named
WAITS = [(12, 12, True), (9, 9, False), (4, 30, True), (2, 30, False)]


@pytest.mark.parametrize(("seen_s", "quiet_s", "named"), WAITS)
def test_oneshot_waits__who_computes_is_named_when_the_others_have_waited_for_long(
    seen_s: float, quiet_s: float, named: bool
) -> None:
    traced = TracedStage(["futex", "futex", "run"], seen_s, quiet_s=quiet_s - seen_s)
    found = traced.found
    assert (found.kind, found.rank) == (
        (VerdictKind.UNKNOWN, 2) if named else (VerdictKind.WORKING, None)
    )


GETS_ON: dict[str, tuple[list[str], dict[str, Any]]] = {
    "bytes to storage": (["futex", "futex", "run"], {"io_bytes_s": 50_000}),
    "a checkpoint": (["futex", "futex", "write"], {"io_bytes_s": 50_000}),
    "a sleep that ends": (["futex", "futex", "sleep"], {"deadline_ns": START_NS + 200 * NS}),
    "two at work": (["futex", "run", "run"], {}),
    "all at work": (["run", "run", "run"], {}),
    "a job that trains": (["train", "train", "train"], {}),
}


@pytest.mark.parametrize("name", GETS_ON)
def test_oneshot_waits__work_that_gets_on_names_no_rank(name: str) -> None:
    modes, last = GETS_ON[name]
    found = TracedStage(modes, 14, **last).found
    assert (found.kind, found.rank) == (VerdictKind.WORKING, None)


def test_oneshot_waits__storage_that_moves_nothing_is_named() -> None:
    found = TracedStage(["futex", "futex", "write"], 12, stack=COLLECTIVE).found
    assert (found.kind, found.cause, found.rank) == (VerdictKind.UNKNOWN, Cause.CHECKPOINT, 2)


def test_oneshot_waits__a_loader_at_work_names_its_rank() -> None:
    traced = TracedStage(["futex", "futex", "poll"], 0)
    loader = traced.stage.add(Proc(501, ppid=102, mode="run"))
    traced.advance(12)
    found = traced.found
    assert (found.kind, found.cause, found.rank) == (VerdictKind.UNKNOWN, Cause.LOADING, 2)
    traced.stage.become(loader, "run", io_bytes_s=50_000)
    traced.advance(2)
    assert traced.found.kind is VerdictKind.WORKING
    traced.stage.become(loader, "sleep", io_bytes_s=0, deadline_ns=traced.stage.now_ns + 99 * NS)
    traced.advance(20)
    assert (traced.found.kind, traced.found.cause) == (VerdictKind.WORKING, Cause.LOADING)


def test_oneshot_waits__a_rank_that_asks_and_is_not_here_in_full_is_no_circle() -> None:
    traced = TracedStage(["starved", "starved"], 8)
    assert traced.found.cause is Cause.WAIT_CYCLE
    for view in traced.stage.job.members.views.values():
        assert view.membership is not None
        view.membership = replace(view.membership, world_size=4)
    traced.stage.job.members.world_size = 4
    assert traced.found.kind is VerdictKind.WORKING
