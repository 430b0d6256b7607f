"""The graph of waits in a few lines of text, with the work that does not count. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kcover_ebpf.diagnosis.evidence import wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.model.process_state import EFFORT, Effort, State
from kcover_ebpf.model.rank_snapshot import Discounted, EffortRates, RankSnapshot
from kcover_ebpf.tunables.diagnosis import COMPUTE_SHARE
from kcover_ebpf.tunables.sampling import MENTIONED_RATE

_SHOWN = 8
_ENDS = {
    State.FUTEX: "another thread of it -> none known",
    State.STORAGE: "storage",
    State.DEVICE: "a driver",
    State.ON_DEVICE: "its device",
    State.USER: "a user",
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
_USUAL = {
    Effort.COMPUTE: (
        "side threads of {who} compute, not clearly more than while the job trained",
        f"side threads of {{who}} compute, less than {COMPUTE_SHARE:.0%} of a CPU",
    ),
    Effort.STORAGE: (
        "bytes of {who} to or from storage, not clearly more than while the job trained",
        "bytes of {who} to or from storage, fewer than a checkpoint has",
    ),
}
"""The reason where an effort is usual for the rank, and where it is little."""
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
    if end_rank.state is State.SLEEPING:
        return _timer(end_rank)
    if end_rank.state is State.SLEEP_LONG and not end_rank.timed:
        return "a signal"
    if end_rank.state in EFFORT and end_rank.state not in _ENDS:
        return f"itself: {end_rank.state.text}"
    return _ENDS.get(end_rank.state, end_rank.state.text)


def _timer(end_rank: RankSnapshot) -> str:
    if end_rank.retries:
        return "something it asks for again and again"
    left_s = end_rank.ends_in_s or 0.0
    return f"a timer, which ends in {left_s:.0f} s" if left_s > 0 else "a timer"


def _ignored(snapshot: JobSnapshot, compared_snapshot: JobSnapshot) -> list[str]:
    """What runs and does not count as work, with the reason: a line for each reason and the ranks it applies to."""
    by_reason: dict[str, list[RankSnapshot]] = {}
    for pid, rank in snapshot.ranks.items():
        for reason in _reasons(rank, compared_snapshot.processes[pid]):
            by_reason.setdefault(reason, []).append(rank)
    monitors = [
        rank
        for rank in snapshot.processes.values()
        if rank.rests and rank.pid not in snapshot.ranks
    ]
    if monitors:
        by_reason["{who} sleeps as it always did"] = monitors
    order = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    return [f"no work: {reason.format(who=_named(ranks))}" for reason, ranks in order[:_SHOWN]]


def _reasons(rank: RankSnapshot, compared_rank: RankSnapshot) -> Iterator[str]:
    """The reasons for one rank, as observed and as compared with its control group."""
    if rank.effort is not None and compared_rank.effort is None:
        yield f"{_WORK[rank.effort]} of {{who}}, as during the waits of the others"
    if rank.state is State.HELPED and compared_rank.state is State.FUTEX:
        words = " or ".join(rank.beside)
        yield f"side threads of {{who}} wait for {words}, as during the waits of the others"
    if State.NAPPING in (compared_rank.state, compared_rank.wait):
        yield "polls of {who} every few milliseconds, as this library waits"
    if rank.effort in (None, Effort.CHILDREN):
        yield from _usual(rank)
    for kind in rank.discounted:
        if kind is not Discounted.CHILD_USUAL or rank.effort is not Effort.CHILDREN:
            yield kind.text


def _usual(rank: RankSnapshot) -> Iterator[str]:
    rates, in_storage = rank.effort_rates or EffortRates(), rank.state is State.STORAGE
    if in_storage and rates.compute >= 1.0:
        yield "side threads of {who} compute, which ends no storage call"
    for effort, (usual, little) in ({} if in_storage else _USUAL).items():
        if rates.of(effort) >= 1.0:
            yield usual
        elif rates.of(effort) >= MENTIONED_RATE:
            yield little


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
