"""Chooses how closely each process of a job is sampled: a compromise of cost and what a judgement needs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from kcover_ebpf.diagnosis.clock.progress import JobProgress, Stall
from kcover_ebpf.diagnosis.clock.suspicion import Suspicion
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.members import Members
from kcover_ebpf.facts.kernel import Detail, SampleRequest
from kcover_ebpf.ids import Pid

_CALM = SampleRequest()
_UNTRAINED = SampleRequest(every=4)
"""While a job has not begun, the explanation (a missing rank, say) is that no thread of a rank works: no hurry."""
_LEARNING = SampleRequest(every=2)
"""Background work is learned soon: a fault may come before the twentieth pass."""
_CLOSE = SampleRequest(Detail.ON, every=1)
_EASED = SampleRequest(Detail.ON, every=4)
"""After it was watched closely, a suspicious job changes slowly."""
_EXAMINED = SampleRequest(Detail.ALL, every=1)
"""For output to people, and while a job has stalled: a rank may wait for a side thread that sleeps."""
_MOST_CHILDREN = 256
"""Children of ranks whose connections are read, at most: each costs a descriptor, and some 5 us a pass."""


def connected(members: Members, *, suspicious: bool) -> list[Pid]:
    """Living processes whose connections are read; while something may be wrong, also the children of ranks."""
    if not suspicious:
        return members.connected
    # busy ones too: a wait for a pipe is judged by all processes that hold its other end
    children = (pid for pid in members.owned if pid not in members.ranks)
    return list(dict.fromkeys([*members.connected, *islice(children, _MOST_CHILDREN)]))


def in_detail(suspicion: Suspicion, now_ns: int, *, trained: bool, examined: bool) -> SampleRequest:
    """The request for a process in detail. `examined`: for output to people as well."""
    urgent = suspicion.urgent(now_ns, trained)
    if examined or (urgent and suspicion.stall is not Stall.NONE):
        return _EXAMINED
    return _CLOSE if urgent else _EASED


def examined(
    ranks: Iterable[ProcessHistory],
    suspicion: Suspicion,
    progress: JobProgress,
    request: SampleRequest,
    now_ns: int,
) -> list[ProcessHistory]:
    """Ranks of which every thread is sampled.

    All ranks if `request` says so; otherwise those that have been silent for longer than a stall takes, because no
    other rank is blamed. In long stalls only those whose threads sleep until a known time.
    """
    living = [rank for rank in ranks if rank.exit is None]
    if request.detail is Detail.ALL:
        return living
    if not suspicion.suspicious:
        return []
    if not suspicion.urgent(now_ns, progress.trained):
        return [rank for rank in living if suspicion.awaits_timer(rank)]
    return [rank for rank in living if progress.has_stalled(rank, now_ns)]


def at_rest(ranks: Iterable[ProcessHistory], progress: JobProgress, now_ns: int) -> SampleRequest:
    """The request for a process in which nothing is wrong."""
    if not progress.trained:
        return _UNTRAINED
    return _CALM if all(rank.habits_are_known(now_ns) for rank in ranks) else _LEARNING


def requests(
    views: Mapping[Pid, ProcessHistory],
    detailed: Collection[Pid],
    request: SampleRequest,
    now_ns: int,
    at_rest_request: SampleRequest,
) -> dict[Pid, SampleRequest]:
    """The request for each living process: `request` for those in `detailed`, `at_rest_request` for the others."""
    return {
        pid: _with_lead(process, request if pid in detailed else at_rest_request, now_ns)
        for pid, process in views.items()
        if process.exit is None
    }


def _with_lead(
    process: ProcessHistory, wanted_request: SampleRequest, now_ns: int
) -> SampleRequest:
    if process.worker is not None:
        return replace(wanted_request, lead=process.worker)
    # the thread that trains may not be the first one; it is found by sampling all of them
    seeks = wanted_request is _CALM and process.rests_since(now_ns) is not None
    return _UNTRAINED if seeks else wanted_request
