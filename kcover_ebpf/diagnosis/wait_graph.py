"""Who waits for whom, in a few lines for people, and what runs beside the waits and does not count as work. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcover_ebpf.diagnosis import wait_chain
from kcover_ebpf.diagnosis.background import Effort
from kcover_ebpf.diagnosis.process_state import EFFORT, State
from kcover_ebpf.diagnosis.rank_snapshot import RankSnapshot
from kcover_ebpf.diagnosis.snapshot import JobSnapshot

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
    State.STOPPED: "who stopped it",
    State.FROZEN: "who froze it",
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


def lines(seen: JobSnapshot, compared: JobSnapshot) -> tuple[str, ...]:
    """The graph of a job whose ranks wait: `seen` as it is, `compared` as its control group shows it."""
    ranks = list(compared.ranks.values())
    waiting, sinks = wait_chain.split(compared, ranks)
    if not waiting or not sinks:
        ends = [f"{_named([rank])} -> {_end(rank)}" for rank in ranks[:_SHOWN]]
        return (*ends, *_ignored(seen, compared))
    chains = [f"{_named(waiting)} -> collective -> {_chain(compared, rank)}" for rank in sinks]
    return (*chains[:_SHOWN], *_ignored(seen, compared))


def _chain(snapshot: JobSnapshot, rank: RankSnapshot) -> str:
    end = wait_chain.follow(snapshot, rank)
    through = "" if end.pid == rank.pid else f" -> process {end.pid}"
    return f"{_named([rank])}{through} -> {_end(end)}"


def _end(end: RankSnapshot) -> str:
    if end.state is State.HELPED:
        return f"a side thread -> {' or '.join(end.beside)}"
    if end.state is State.OUTSIDE:
        return "another program" if end.awaits is None else f"a service at {end.awaits}"
    if end.state in EFFORT and end.state not in _ENDS:
        return f"itself: {end.state.text}"
    return _ENDS.get(end.state, end.state.text)


def _ignored(seen: JobSnapshot, compared: JobSnapshot) -> list[str]:
    found = []
    for effort, text in _WORK.items():
        dropped = [
            rank
            for pid, rank in seen.ranks.items()
            if rank.effort is effort and compared.processes[pid].effort is None
        ]
        if dropped:
            found.append(f"no work: {text} of {_named(dropped)}, as beside the waits of the others")
    monitors = [
        rank for rank in seen.processes.values() if rank.rests and rank.pid not in seen.ranks
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
