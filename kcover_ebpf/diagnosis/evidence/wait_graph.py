"""The graph of waits in a few lines of text, with the work that does not count. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcover_ebpf.diagnosis.evidence import wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.model.process_state import EFFORT, Effort, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot

_SHOWN = 8
_ENDS = {
    State.FUTEX: "another thread of it -> none known",
    State.STORAGE: "storage",
    State.DEVICE: "a driver",
    State.ON_DEVICE: "its device",
    State.USER: "a user",
    State.SLEEPING: "a timer",
    State.SLEEP_LONG: "a timer of ten minutes or more",
    State.NAPPING: "something it asks for every few milliseconds",
    State.STOPPED: "the process that stopped it",
    State.FROZEN: "the process that froze it",
    State.TRACED: "a debugger",
    State.THROTTLED: "a CPU",
    State.FAULTING: "a page",
    State.CHILD: "a child",
    State.READ: "data that is not sent",
    State.LOCK: "the owner of a file lock",
    State.SPINNING: "itself: a tight loop",
    State.PEERS: "its peers",
}
_WORK = {
    Effort.COMPUTE: "side threads that compute",
    Effort.STORAGE: "bytes that move to or from storage",
    Effort.CHILDREN: "children that work",
}


def lines(snapshot: JobSnapshot, compared_snapshot: JobSnapshot) -> tuple[str, ...]:
    """The graph of a job whose ranks wait: `snapshot` as observed, `compared_snapshot` with the control group."""
    ranks = list(compared_snapshot.ranks.values())
    waiting, sinks = wait_chain.split(compared_snapshot, ranks)
    if not waiting or not sinks:
        ends = [f"{_named([rank])} -> {_end(rank)}" for rank in ranks[:_SHOWN]]
        return (*ends, *_ignored(snapshot, compared_snapshot))
    chains = [
        f"{_named(waiting)} -> collective -> {_chain(compared_snapshot, rank)}" for rank in sinks
    ]
    return (*chains[:_SHOWN], *_ignored(snapshot, compared_snapshot))


def _chain(snapshot: JobSnapshot, rank: RankSnapshot) -> str:
    end = wait_chain.follow(snapshot, rank)
    through = "" if end.pid == rank.pid else f" -> process {end.pid}"
    return f"{_named([rank])}{through} -> {_end(end)}"


def _end(end_rank: RankSnapshot) -> str:
    holder = "a side thread" if end_rank.holder is None else f"thread {end_rank.holder}"
    if end_rank.state is State.HELPED:
        return f"{holder} -> {' or '.join(end_rank.beside)}"
    if end_rank.state is State.FUTEX and end_rank.holder is not None:
        return f"{holder} -> none known"
    if end_rank.state is State.OUTSIDE:
        return "another program" if end_rank.awaits is None else f"a service at {end_rank.awaits}"
    if end_rank.state is State.READ and end_rank.writes:
        return "data that is not read"
    if end_rank.state is State.SLEEP_LONG and not end_rank.timed:
        return "a signal"
    if end_rank.state in EFFORT and end_rank.state not in _ENDS:
        return f"itself: {end_rank.state.text}"
    return _ENDS.get(end_rank.state, end_rank.state.text)


def _ignored(snapshot: JobSnapshot, compared_snapshot: JobSnapshot) -> list[str]:
    found = []
    for effort, text in _WORK.items():
        dropped = [
            rank
            for pid, rank in snapshot.ranks.items()
            if rank.effort is effort and compared_snapshot.processes[pid].effort is None
        ]
        if dropped:
            found.append(f"no work: {text} of {_named(dropped)}, as during the waits of the others")
    monitors = [
        rank
        for rank in snapshot.processes.values()
        if rank.rests and rank.pid not in snapshot.ranks
    ]
    if monitors:
        found.append(f"no work: {_named(monitors)} sleeps as it always did")
    return found


def _named(ranks: Sequence[RankSnapshot]) -> str:
    numbers = sorted(rank.rank for rank in ranks if rank.rank is not None)
    if len(numbers) < len(ranks):
        return _listed("process", "processes", [rank.pid for rank in ranks])
    return _listed("rank", "ranks", numbers)


def _listed(one: str, many: str, numbers: Iterable[int]) -> str:
    found = list(numbers)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    text = ", ".join(map(str, found[:_SHOWN]))
    return f"{one if len(found) == 1 else many} {text}{more}"
