"""How closely each process of a job is to be sampled: what costs a pass, and what a judgement needs. Pure."""

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
from kcover_ebpf.model.roles import Role

_CALM = SampleRequest()
_UNTRAINED = SampleRequest(every=4)
"""What explains that a job does not begin (a missing rank, say) is that no thread of a rank works."""
_LEARNING = SampleRequest(every=2)
"""What runs beside the steps is learned soon: a fault may come before the twentieth pass."""
_CLOSE = SampleRequest(Detail.ON, every=1)
_EASED = SampleRequest(Detail.ON, every=4)
"""What was found while it was watched closely changes slowly."""
_EXAMINED = SampleRequest(Detail.ALL, every=1)
"""For people, and while a job has stalled: a side thread that sleeps may be who a rank waits for."""
_MOST_CHILDREN = 256
"""Children of ranks whose connections are read: each costs us a descriptor, and some 5 us a pass."""


def connected(members: Members, *, suspicious: bool) -> list[Pid]:
    """Living processes whose connections are wanted; while something may be wrong, those of the ranks' children too."""
    if not suspicious:
        return members.connected
    children = (view.pid for view in members.owned.values() if _may_wait(view))
    return list(dict.fromkeys([*members.connected, *islice(children, _MOST_CHILDREN)]))


def _may_wait(process: ProcessHistory) -> bool:
    role = process.membership.role if process.membership else Role.HELPER
    busy = process.lead is not None and process.lead.burning_since_ns is not None
    return role in (Role.LOADER, Role.HELPER) and not busy


def in_detail(suspicion: Suspicion, now_ns: int, *, trained: bool, examined: bool) -> SampleRequest:
    """What is wanted of a process in detail; `examined`: for people, too."""
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
    """Ranks of which every thread is wanted: all, where `request` says so; else the first that are silent for too long.

    They are not blamed before; and in long stalls those whose threads sleep until a known time.
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
    """What is wanted of a process that nothing is wrong with."""
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
    """What is wanted of each living process: `request` of those in `detailed`, `at_rest_request` of the others."""
    return {
        pid: _with_lead(view, request if pid in detailed else at_rest_request, now_ns)
        for pid, view in views.items()
        if view.exit is None
    }


def _with_lead(
    process: ProcessHistory, wanted_request: SampleRequest, now_ns: int
) -> SampleRequest:
    if process.worker is not None:
        return replace(wanted_request, lead=process.worker)
    # the thread that trains may be another than the first: it is found by sampling all
    seeks = wanted_request is _CALM and process.rests_since(now_ns) is not None
    return _UNTRAINED if seeks else wanted_request
