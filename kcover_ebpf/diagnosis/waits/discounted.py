"""What runs in a rank during its wait and is known not to be work, with the reason. Pure; no judgement reads it."""

from __future__ import annotations

from collections.abc import Iterator

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.diagnosis.waits import helpers
from kcover_ebpf.diagnosis.waits.classify_context import ClassifyContext
from kcover_ebpf.facts.kernel import TaskState
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import Discounted
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.diagnosis import EFFORT_WINDOW_NS


def discounted(
    process: ProcessHistory, wait: State, since_ns: int, context: ClassifyContext
) -> tuple[Discounted, ...]:
    """What ran in a rank since its wait began at the boottime `since_ns` and explains no wait, each kind once.

    Its own computing and storage are left out: `RankSnapshot.effort_rates` shows these. Empty for a process that is
    no rank.
    """
    if process.role is not Role.RANK:
        return ()
    recent_ns = max(since_ns, context.now_ns - EFFORT_WINDOW_NS)
    found = set(_of_threads(process, wait, since_ns, context))
    for child in context.children(process.pid):
        found.update(_of_child(process, child, recent_ns, context))
    if _is_telemetry(process, since_ns, context):
        found.add(Discounted.TELEMETRY)
    return tuple(kind for kind in Discounted if kind in found) if found else ()


def _of_threads(
    process: ProcessHistory, wait: State, since_ns: int, context: ClassifyContext
) -> Iterator[Discounted]:
    lead = process.lead
    burns = lead is not None and lead.burning_since_ns is not None
    if burns and wait in (State.PEERS, State.ON_DEVICE):
        yield Discounted.LEAD_SPINS
    for thread in process.side_threads if process.sides_sampled_ns >= since_ns else ():
        if thread.burning_since_ns is not None and (thread.waits_in or thread.waits_busily):
            yield Discounted.SIDES_SPIN
        if thread.naps_since_ns is not None and thread.naps_since_ns < since_ns:
            yield Discounted.SIDES_NAP
    if helpers.wakes_as_usual(process, since_ns, context):
        yield Discounted.SIDES_WAKE


def _of_child(
    process: ProcessHistory, child_process: ProcessHistory, recent_ns: int, context: ClassifyContext
) -> Iterator[Discounted]:
    lead, efforts = child_process.lead, child_process.efforts
    if lead is None or not _runs(child_process, lead, recent_ns):
        return
    age_ns = context.now_ns - child_process.first_seen_ns
    if process.efforts.background.has_run(child_process.name, age_ns):
        yield Discounted.CHILD_BRIEF
    elif efforts.during(recent_ns, recent_ns) is not None:
        return  # it works
    elif lead.burning_since_ns is not None:
        if lead.spins_in_place:
            yield Discounted.CHILD_SPINS
    elif max(efforts.most(recent_ns, recent_ns)) >= 1.0:
        yield Discounted.CHILD_USUAL
    elif child_process.rhythm.is_known and child_process.rhythm.unusual_ns <= recent_ns:
        yield Discounted.CHILD_WAKES


def _runs(child_process: ProcessHistory, lead_thread: ThreadHistory, recent_ns: int) -> bool:
    is_on_cpu = lead_thread.sample.state is TaskState.RUNNING
    return is_on_cpu or max(lead_thread.progress_ns, child_process.efforts.beyond_ns) >= recent_ns


def _is_telemetry(process: ProcessHistory, since_ns: int, context: ClassifyContext) -> bool:
    traffic = process.traffic
    return any(
        max(sample.last_send_ns, traffic.transfer_ns(sample)) >= since_ns
        and (traffic.is_habit(sample) or traffic.is_stream(sample))
        for sample in context.ends.outside(process)
    )
