"""A single trace of a job that was stuck before it was watched."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kcover_ebpf.diagnosis import oneshot
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from tests.unit.support.scripted_job import Proc, Stage


def waiting(present: list[int], world: int, environ: dict[str, str], mode: str = "futex") -> Stage:
    """A job of which only some ranks are here, all in one mode, seen for four seconds."""
    stage = Stage(world=0)
    stage.world = world
    for rank in present:
        stage.add(Proc(100 + rank, rank=rank, mode=mode))
    stage.job.examine()
    stage.one_pass(NS)
    for view in list(stage.job.members.views.values()):
        if view.seen is not None:
            stage.job.observe(replace(view.seen, rank_environ=view.seen.rank_environ | environ))
    for _ in range(4):
        stage.job.examine()
        stage.one_pass(NS)
    return stage


LOCAL = {"LOCAL_WORLD_SIZE": "4"}
CASES = {
    "a gap in the numbers": ([0, 1, 3], 4, {}, 2),
    "the last one, reported by the launcher": ([0, 1, 2], 4, LOCAL, 3),
    "the first one": ([1, 2, 3], 4, LOCAL, 0),
    "the last of a host of many": ([4, 5, 6], 8, LOCAL, 7),
    "none: the others may be elsewhere": ([0, 1, 2], 4, {}, None),
    "none: the launcher started no more here": ([0, 1, 2, 3], 8, LOCAL, None),
    "none: all are here": ([0, 1, 2, 3], 4, LOCAL, None),
}


@pytest.mark.parametrize("name", CASES)
def test_lost_before__a_rank_that_is_gone_leaves_a_gap(name: str) -> None:
    present, world, environ, lost = CASES[name]
    found = oneshot.lost_before(waiting(present, world, environ).job)
    assert (None if found is None else found.rank) == lost
    if found is not None:
        assert (found.kind, found.cause) == (VerdictKind.HUNG, Cause.MISSING_RANK)


def test_no_rank_moves__no_rank_is_lost_while_one_works() -> None:
    stage = waiting([0, 1, 3], 4, LOCAL, mode="run")
    assert not oneshot.no_rank_moves(stage.job)
    assert oneshot.lost_before(stage.job) is None


def test_name_the_lost__a_lost_link_that_no_rank_here_explains_leads_to_the_lost_rank() -> None:
    stage = waiting([0, 1, 3], 4, LOCAL)
    link = Finding(VerdictKind.LOST_LINK, Cause.LINK, stage.now_ns)
    assert oneshot.name_the_lost(stage.job, link).rank == 2
    named = replace(link, culprit=Culprit(1))
    assert oneshot.name_the_lost(stage.job, named) is named
    several = waiting([0, 3], 4, LOCAL)
    assert oneshot.name_the_lost(several.job, link) is link


def test_a_rank_waits__a_trace_continues_while_a_rank_waits_without_reason() -> None:
    assert oneshot.a_rank_waits(waiting([0, 1], 4, LOCAL).job, PassHistory())
    assert not oneshot.a_rank_waits(waiting([0, 1], 4, LOCAL, mode="run").job, PassHistory())


@pytest.mark.parametrize(
    ("state", "young", "others", "lost"),
    [
        ("CLOSE", False, (), 0),
        ("SYN_SENT", False, (), 0),
        pytest.param("CLOSE", True, (), None, id="the first one may only be slow"),
        pytest.param("CLOSE", False, ("ESTABLISHED",), None, id="connected to a peer"),
        pytest.param("LISTEN", False, (), None, id="asks no peer"),
        pytest.param("unused", False, (), None, id="a socket that was never used"),
    ],
)
def test_lost_before__ranks_that_reach_no_peer_wait_for_the_one_that_is_not_here(
    state: str, young: bool, others: tuple[str, ...], lost: int | None
) -> None:
    stage = waiting([1, 2, 3], 4, LOCAL, mode="sleep")
    for pid, view in stage.job.members.ranks.items():
        assert view.lead is not None
        view.sockets = {
            fd: knock(pid, fd, text, stage.now_ns) for fd, text in enumerate((state, *others))
        }
        started_ns = stage.now_ns - (4 if young else 10) * NS
        view.lead.sample = replace(view.lead.sample, start_ns=started_ns)
    found = oneshot.lost_before(stage.job)
    assert (None if found is None else found.rank) == lost


@pytest.mark.parametrize(
    ("mode", "quiet_s", "lost"), [("sleep", 20, 3), ("sleep", 5, None), ("run", 20, None)]
)
def test_lost_before__the_supervisor_of_the_store_sleeps_and_asks_while_one_is_missing(
    mode: str, quiet_s: int, lost: int | None
) -> None:
    stage = waiting([0, 1, 2], 4, LOCAL)
    stage.become(stage.rank(0), mode, deadline_ns=stage.now_ns + 30 * NS)
    for proc in stage.procs.values():
        proc.last_send_ns = stage.now_ns - quiet_s * NS
    for _ in range(10):
        stage.job.examine()
        stage.one_pass(NS // 4)
    found = oneshot.lost_before(stage.job)
    assert (None if found is None else found.rank) == lost
    last = oneshot.conclusion(stage.job, PassHistory())
    assert last is not None
    assert (last.cause is Cause.MISSING_RANK) is (lost is not None)


def knock(pid: int, fd: int, state: str, now_ns: int) -> SocketSample:
    """A connection of a rank to the first one's address."""
    remote = ("127.0.0.1", 0 if state in ("LISTEN", "unused") else 29500)
    state = "CLOSE" if state == "unused" else state
    ends = {"local": ("127.0.0.1", 0), "remote": remote}
    zero = dict.fromkeys((field.name for field in fields(SocketSample)), 0)
    known = {"boottime_ns": now_ns, "pid": pid, "fd": fd, "inode": fd, "state": state}
    return SocketSample(**zero | known | ends)  # type: ignore[arg-type]


def test_since_the_loss__a_link_is_lost_since_the_last_byte_that_got_through() -> None:
    stage = waiting([0, 1], 2, LOCAL)
    late_ns, time = stage.now_ns - NS, Evidence(EvidenceKind.TIME, "no answer for 1.0 s")
    link = Finding(VerdictKind.LOST_LINK, Cause.LINK, late_ns, evidence=(time,))
    for proc in stage.procs.values():
        proc.last_send_ns = stage.now_ns - 13 * NS
    stage.one_pass(NS)
    found = oneshot.since_the_loss(stage.job, link)
    assert found.since_ns == stage.now_ns - 14 * NS
    assert [evidence.text for evidence in found.evidence] == [
        "no byte has reached any rank for 14.0 s"
    ]
    earlier = replace(link, since_ns=stage.now_ns - 20 * NS)
    assert oneshot.since_the_loss(stage.job, earlier) is earlier


def busy(modes: list[str], passes: int) -> Stage:
    """Ranks that burn their CPUs, seen so often."""
    stage = Stage(world=0)
    stage.world = len(modes)
    for rank, mode in enumerate(modes):
        stage.add(Proc(100 + rank, rank=rank, mode=mode))
    for _ in range(passes):
        stage.job.examine()
        stage.one_pass(NS // 4)
    return stage


@pytest.mark.parametrize(
    ("modes", "passes", "undecided"),
    [
        (["yield", "yield", "run"], 6, True),
        (["yield", "yield", "run"], 16, False),
        (["yield", "yield", "spin"], 16, True),
        (["yield", "yield", "yield"], 16, False),
        (["yield", "yield", "futex"], 16, False),
    ],
)
def test_undecided__who_waits_busily_is_distinguished_from_who_works_in_a_longer_trace(
    modes: list[str], passes: int, undecided: bool
) -> None:
    assert oneshot.undecided(busy(modes, passes).job, PassHistory()) is undecided


@pytest.mark.parametrize(("passes", "undecided"), [(6, True), (20, False)])
def test_undecided__a_loader_that_burns_a_cpu_is_traced_for_longer(
    passes: int, undecided: bool
) -> None:
    stage = busy(["futex", "poll"], 0)
    stage.add(Proc(501, ppid=101, mode="run"))
    for _ in range(passes):
        stage.job.examine()
        stage.one_pass(NS // 4)
    assert oneshot.undecided(stage.job, PassHistory()) is undecided


@pytest.mark.parametrize(
    ("present", "world", "cause"),
    [
        ([2], 4, Cause.STOPPED),
        ([0, 1], 2, Cause.SUSPENDED),
        pytest.param([2], 0, Cause.STOPPED, id="numbers below, and no word on how many"),
        pytest.param([0, 1], 0, Cause.SUSPENDED, id="no numbers below"),
    ],
)
def test_stopped_here__a_part_of_a_job_that_is_stopped_was_not_suspended(
    present: list[int], world: int, cause: Cause
) -> None:
    stage = waiting(present, world, {}, mode="stopped")
    suspended = Finding(VerdictKind.WORKING, Cause.SUSPENDED, stage.now_ns)
    found = oneshot.stopped_here(stage.job.snapshot(), suspended, stage.job.members.world_size)
    assert found.cause is cause
    assert found.rank == (2 if cause is Cause.STOPPED else None)
