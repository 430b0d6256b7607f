"""The walk along the waits, on any graph of them: it ends, and ends at whom it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.evidence import wait_chain, wait_graph
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.history.stacks import KnownWaits
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.ids import NS, Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Policy
from tests.unit.support.scripted_job import BARRIER, COLLECTIVE

NOW_NS = 1_000 * NS


def at(
    pid: int,
    state: State,
    *waits_for: int,
    since_s: float = 100,
    role: Role = Role.RANK,
    stack: tuple[str, ...] = (),
    timed: bool = False,
) -> RankSnapshot:
    return RankSnapshot(
        pid=Pid(pid),
        tid=pid,
        rank=pid if role is Role.RANK else None,
        role=role,
        state=state,
        age_s=since_s,
        threshold_s=2.0,
        text="text",
        thread_read=True,
        timed=timed,
        stack=stack,
        waits_for=tuple(map(Pid, waits_for)),
    )


def job_snapshot(*snapshots: RankSnapshot, known: KnownWaits | None = None) -> JobSnapshot:
    known = known or KnownWaits()
    known_too = (
        replace(snapshot, known_wait=known.knows(snapshot.stack)) for snapshot in snapshots
    )
    return JobSnapshot(
        now_ns=NOW_NS,
        policy=Policy(),
        processes={rank.pid: rank for rank in known_too},
        ends=EndpointIndex(snapshots),
        knows_waits=known.count > 0,
    )


def end_of(*snapshots: RankSnapshot) -> int:
    return wait_chain.follow(job_snapshot(*snapshots), snapshots[0]).pid


def child(pid: int, state: State, *waits_for: int, **more: object) -> RankSnapshot:
    return at(pid, state, *waits_for, role=Role.LOADER, **more)  # type: ignore[arg-type]


def test_follow__the_chain_goes_through_children_to_the_last_one() -> None:
    assert end_of(at(1, State.CHILD, 2), child(2, State.READ, 3), child(3, State.SLEEP_LONG)) == 3


def test_follow__a_rank_waits_for_ranks_only_by_a_lock() -> None:
    assert end_of(at(1, State.LOCK, 2), at(2, State.SLEEP_LONG)) == 2
    assert end_of(at(1, State.READ, 2), at(2, State.SLEEP_LONG)) == 1


def test_follow__a_cycle_of_waits_ends() -> None:
    assert end_of(at(1, State.CHILD, 2), child(2, State.READ, 3), child(3, State.READ, 2)) == 3


@pytest.mark.parametrize(
    ("one", "other", "end"),
    [
        (child(2, State.PEERS), child(3, State.STOPPED), 3),
        (child(2, State.SLEEP_LONG), child(3, State.FUTEX), 2),
        (child(2, State.FUTEX), child(3, State.FUTEX, timed=True), 2),
        (child(2, State.FUTEX, timed=True), child(3, State.FUTEX), 3),
        (child(2, State.STORAGE, since_s=10), child(3, State.STORAGE, since_s=50), 3),
        (replace(child(2, State.READ, 1), writes=True), child(3, State.FUTEX), 2),
        (child(2, State.READ, 1), child(3, State.FUTEX), 3),
    ],
)
def test_follow__of_several_children_the_one_that_cannot_continue_explains_the_wait(
    one: RankSnapshot, other: RankSnapshot, end: int
) -> None:
    assert end_of(at(1, State.CHILD, 2, 3), one, other) == end


@pytest.mark.parametrize(
    ("writes", "beside", "end_waits_for", "is_cycle"),
    [
        (True, (), 1, True),
        (False, (), 1, False),
        (True, ("storage",), 1, False),
        (True, (), 4, False),
    ],
    ids=["a full pipe", "waits for a task", "a thread that may read", "writes to another"],
)
def test_is_cycle__a_child_waits_until_the_rank_that_waits_for_it_reads(
    writes: bool, beside: tuple[str, ...], end_waits_for: int, *, is_cycle: bool
) -> None:
    rank = replace(at(1, State.CHILD, 2), beside=beside)
    writer = replace(child(2, State.READ, end_waits_for), writes=writes)
    assert wait_chain.is_cycle(rank, writer) is is_cycle
    scene = job_snapshot(rank, writer, at(3, State.PEERS))
    end = "read" if writes else "sent"
    assert wait_graph.lines(scene, scene)[0].endswith(f"process 2 -> data that is not {end}")
    assert not wait_chain.is_cycle(writer, writer)


def sides(*ranks: RankSnapshot, known: Sequence[tuple[str, ...]] = ()) -> tuple[set[int], set[int]]:
    waits = KnownWaits()
    for pair in known:
        waits.learn(pair)
    scene = job_snapshot(*ranks, known=waits)
    waiting, sinks = wait_chain.split(scene, list(scene.ranks.values()))
    return {rank.pid for rank in waiting}, {sink.pid for sink in sinks}


def test_split__one_spinning_rank_is_at_the_end_and_several_wait() -> None:
    assert sides(at(1, State.SPINNING), at(2, State.FUTEX)) == ({2}, {1})
    assert sides(at(1, State.SPINNING), at(2, State.SPINNING)) == ({1, 2}, set())


def test_split__a_lock_that_no_thread_ever_left_is_at_the_end_of_the_chain() -> None:
    ranks = [at(pid, State.FUTEX, stack=COLLECTIVE) for pid in (1, 2)]
    odd = at(3, State.FUTEX, stack=BARRIER)
    assert sides(*ranks, odd, known=[COLLECTIVE]) == ({1, 2}, {3})
    assert sides(*ranks, odd, known=[COLLECTIVE, BARRIER]) == ({1, 2, 3}, set())
    assert sides(at(1, State.PEERS), odd) == ({1}, {3})


SNAPSHOTS = st.lists(
    st.builds(
        at,
        st.integers(1, 6),
        st.sampled_from(State),
        st.integers(1, 7),
        st.integers(1, 7),
        since_s=st.floats(0, 900),
        role=st.sampled_from([Role.RANK, Role.LOADER, Role.HELPER]),
        stack=st.sampled_from([(), COLLECTIVE, BARRIER]),
        timed=st.booleans(),
    ),
    unique_by=lambda build: build.pid,
)


@given(SNAPSHOTS)
@example([at(1, State.PEERS), at(2, State.SLEEP_LONG, since_s=20)])
def test_split__any_snapshot_is_judged(snapshots: list[RankSnapshot]) -> None:
    scene = job_snapshot(*snapshots)
    ranks = [snapshot for snapshot in snapshots if snapshot.pid in scene.ranks]
    waiting, sinks = wait_chain.split(scene, ranks)
    assert sorted(rank.pid for rank in (*waiting, *sinks)) == sorted(rank.pid for rank in ranks)
    found = judge(scene)
    assert found.pid is None or found.pid in scene.ranks
    assert found.pid not in found.victims
    assert set(found.victims) <= scene.ranks.keys()
    if found.kind.is_fault:
        assert found.evidence
    if found.kind is VerdictKind.WORKING:
        assert found.culprit is None
    kinds = {evidence.kind for evidence in found.evidence}
    assert not found.kind.is_fault or kinds != {EvidenceKind.TIME}


@given(SNAPSHOTS)
@example([at(1, State.PEERS), at(2, State.SLEEP_LONG, since_s=20)])
@example([at(1, State.MOVING, since_s=0), at(2, State.PEERS, since_s=300)])
def test_job_snapshot__a_rank_that_moves_right_now_is_never_the_culprit_of_a_fault(
    snapshots: list[RankSnapshot],
) -> None:
    """That the others wait for one that moves for minutes may be shown to people."""
    scene = job_snapshot(*snapshots)
    finding = judge(scene)
    if finding.kind is VerdictKind.UNKNOWN:
        return
    culprit = scene.processes.get(finding.pid or Pid(0))
    assert culprit is None or (culprit.state is not State.MOVING and culprit.age_s >= 2.0)


@pytest.mark.parametrize("wait", [State.CHILD, State.LOCK])
def test_job_snapshot__who_waits_for_a_throttled_process_is_slow_and_not_hung(wait: State) -> None:
    loader = at(1, State.THROTTLED, since_s=20, role=Role.LOADER)
    found = judge(job_snapshot(loader, at(3, wait, 1, since_s=20), at(2, State.PEERS, since_s=19)))
    assert (found.kind, found.cause) == (VerdictKind.SLOW, Cause.CPU_THROTTLED)


def test_job_snapshot__of_ranks_that_cannot_continue_the_first_is_named() -> None:
    found = judge(
        job_snapshot(
            at(1, State.PEERS),
            at(2, State.SLEEP_LONG, since_s=20),
            at(3, State.SLEEP_LONG, since_s=30),
        )
    )
    assert (found.kind, found.pid, found.cause) == (VerdictKind.HUNG, 3, Cause.BLOCKED_SLEEP)


def test_job_snapshot__ranks_that_all_sleep_without_end_wait_for_no_other() -> None:
    """Pods that are kept alive for later; one that waits for its peers makes a hang of it."""
    asleep = at(1, State.SLEEP_LONG), at(2, State.SLEEP_LONG, since_s=30)
    found = judge(job_snapshot(*asleep))
    assert (found.kind, found.cause) == (VerdictKind.WORKING, Cause.SLEEPING)
    assert judge(job_snapshot(*asleep, at(3, State.PEERS))).kind is VerdictKind.HUNG


@pytest.mark.parametrize(("since_s", "kind"), [(0.3, VerdictKind.WORKING), (0.5, VerdictKind.HUNG)])
def test_job_snapshot__no_rank_is_named_while_another_came_to_wait_just_now(
    since_s: float, kind: VerdictKind
) -> None:
    found = judge(
        job_snapshot(at(1, State.SLEEP_LONG, since_s=30), at(2, State.PEERS, since_s=since_s))
    )
    assert found.kind is kind


@pytest.mark.parametrize(("second", "culprit"), [(State.STORAGE, None), (State.FUTEX, 1)])
def test_job_snapshot__where_several_ranks_wait_for_storage_it_is_no_rank(
    second: State, culprit: int | None
) -> None:
    ranks = [at(1, State.STORAGE), at(2, second), at(3, State.FUTEX)]
    stuck = [replace(rank, proven=rank.state is State.STORAGE) for rank in ranks]
    found = judge(job_snapshot(*stuck))
    assert (found.kind, found.cause, found.pid) == (VerdictKind.HUNG, Cause.STORAGE, culprit)


def test_is_effort__one_rank_without_a_cpu_explains_no_wait_but_an_overloaded_host_does() -> None:
    one = job_snapshot(at(1, State.THROTTLED), at(2, State.PEERS))
    several = job_snapshot(at(1, State.THROTTLED), at(2, State.THROTTLED))
    assert not wait_chain.is_effort(one, one.processes[Pid(1)])
    assert wait_chain.is_effort(several, several.processes[Pid(1)])


@pytest.mark.parametrize(("since_s", "cause"), [(1.9, Cause.TRAINING), (2.1, Cause.STOPPED)])
def test_job_snapshot__a_rank_that_is_stopped_for_a_moment_is_no_fault(
    since_s: float, cause: Cause
) -> None:
    found = judge(job_snapshot(at(1, State.STOPPED, since_s=since_s), at(2, State.PEERS)))
    assert found.cause is cause


@pytest.mark.parametrize(
    ("since_s", "threshold_s", "cause"),
    [
        (5, 2, Cause.TRAINING),
        (7, 2, Cause.WAIT_CYCLE),
        (19, 10, Cause.TRAINING),
        (21, 10, Cause.WAIT_CYCLE),
    ],
)
def test_job_snapshot__a_circle_is_reported_after_twice_a_stall(
    since_s: float, threshold_s: float, cause: Cause
) -> None:
    scene = job_snapshot(at(1, State.PEERS, since_s=since_s), at(2, State.PEERS, since_s=since_s))
    slower = {pid: replace(rank, threshold_s=threshold_s) for pid, rank in scene.ranks.items()}
    found = judge(replace(scene, processes=slower))
    assert found.cause is cause


def peers(pid: int, *, payload: bool) -> RankSnapshot:
    """A rank that waits for data of a connection to a host that is not seen."""
    far = Endpoint("10.0.0.9", 4000)
    socket = SocketSnapshot(Endpoint("10.0.0.1", 5000), far, "ESTABLISHED", payload=payload)
    return replace(at(pid, State.PEERS), awaits=far, sockets=(socket,))


@pytest.mark.parametrize(("payload", "sinks"), [(True, [1]), (False, [])])
def test_wait_chain__who_waits_for_an_unknown_host_is_in_no_collective_for_certain(
    payload: bool, sinks: list[int]
) -> None:
    snapshot = job_snapshot(peers(0, payload=payload), at(1, State.FUTEX, stack=BARRIER))
    _, found = wait_chain.split(snapshot, list(snapshot.ranks.values()))
    assert [rank.pid for rank in found] == sinks


@pytest.mark.parametrize(("barrier", "sinks"), [(1, [1]), (2, [1, 2]), (3, []), (5, [])])
def test_wait_chain__most_ranks_are_never_elsewhere_than_the_others(
    barrier: int, sinks: list[int]
) -> None:
    waiting = [at(pid, State.FUTEX, stack=BARRIER) for pid in range(1, barrier + 1)]
    asking = [at(pid, State.PEERS) for pid in (10, 11)]
    snapshot = job_snapshot(*waiting, *asking)
    _, found = wait_chain.split(snapshot, list(snapshot.ranks.values()))
    assert [rank.pid for rank in found] == sinks


def test_wait_chain__a_job_parted_in_two_known_places_is_suspected_in_the_end() -> None:
    known = KnownWaits()
    known.learn(COLLECTIVE)
    ranks = [
        at(pid, State.FUTEX, stack=BARRIER if pid < 5 else COLLECTIVE, since_s=90)
        for pid in range(8)
    ]
    finding = judge(job_snapshot(*ranks, known=known))
    assert (finding.kind, finding.cause) == (VerdictKind.UNKNOWN, Cause.WAIT_CYCLE)
    assert finding.culprit is None
