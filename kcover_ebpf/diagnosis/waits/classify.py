"""Classifies what a process does or waits for, by its lead thread, its other threads and its children."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from statistics import median

from kcover_ebpf.diagnosis.history.code_map import Code
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.sampled_call import written_fd
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.diagnosis.waits import helpers
from kcover_ebpf.diagnosis.waits.call_text import in_short
from kcover_ebpf.diagnosis.waits.classify_context import ClassifyContext
from kcover_ebpf.diagnosis.waits.classify_wait import (
    Wait,
    is_completing,
    is_semaphore_of_driver,
    judge_wait,
)
from kcover_ebpf.diagnosis.waits.discounted import discounted
from kcover_ebpf.facts.host import ThreadReading
from kcover_ebpf.facts.kernel import ProcessExit, TaskState, ThreadSample
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import STOPPED, Effort, State
from kcover_ebpf.model.rank_snapshot import EffortRates, RankSnapshot, exit_text
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.certainty import EFFORT_FACTOR, RETRIES_AFTER_S
from kcover_ebpf.tunables.diagnosis import (
    BUSY_SHARE,
    EFFORT_WINDOW_NS,
    MOVED_RECENTLY_NS,
    READER_DRAINS_NS,
    STORAGE_WINDOW_NS,
    THROTTLED_SHARE,
)

CERTAIN = 1e6
"""Rate of an effort that needs no comparison, because the lead thread itself waits for it: above that of any peer."""
_STOPPED_STATE = {
    TaskState.STOPPED: State.STOPPED,
    TaskState.FROZEN: State.FROZEN,
    TaskState.TRACED: State.TRACED,
}
EFFORT_STATE = {
    Effort.COMPUTE: State.COMPUTING,
    Effort.STORAGE: State.STORING,
    Effort.CHILDREN: State.CHILDREN,
}
_WAITS_IN = {
    Code.DEVICE: State.ON_DEVICE,
    Code.COLLECTIVE: State.PEERS,
    Code.MESSAGES: State.PEERS,
}
_MAY_WAIT_FOR_CHILDREN = frozenset(
    {State.CHILD, State.FUTEX, State.HELPED, State.PEERS, State.READ, State.OTHER, State.SPINNING}
)
_NO_WAIT = frozenset({*STOPPED, State.MOVING, State.COMPUTING})


def classify(process: ProcessHistory, context: ClassifyContext) -> RankSnapshot:
    """The state of `process` at the moment of the context; a process that was not sampled yet counts as moving.

    The lead thread decides. If it is blocked, its call and its files show what it waits for (`classify_wait`). An
    effort made during this wait, by other threads or by children, replaces the wait as the state: the process works.
    """
    lead = process.lead
    if process.exit is not None:
        return _ended(process, process.exit, context)
    if lead is None:
        return _unsampled(process, context)
    readings: Sequence[ThreadReading] = context.readings(process.pid, lead.sample.tid)
    if readings and readings[0].boottime_ns < lead.progress_ns:
        readings = [reading for reading in readings if reading.boottime_ns >= lead.progress_ns]
    since_ns = max(_since(lead, process), _drained_ns(lead.sample, context))
    wait = _state(process, lead, readings, context, since_ns)
    effort, rate, rates = _efforts(process, wait, readings, context, since_ns)
    state = wait.state if effort is None else EFFORT_STATE[effort]
    last = readings[-1] if readings else None
    return RankSnapshot(
        pid=process.pid,
        role=process.role or Role.HELPER,
        state=state,
        tid=lead.sample.tid,
        rank=process.rank,
        age_s=(context.now_ns - _state_since(process, state, since_ns)) / NS,
        text=in_short(lead.sample, last, context.table, state) + _quota(process, state),
        thread_read=last is not None,
        timed=last is not None and last.timed,
        retries=state is State.SLEEPING and _sleeps_anew(lead, since_ns),
        stack=last.stack if last is not None else (),
        proven=wait.proven and effort is None,
        waits_for=wait.waits_for,
        effort=effort,
        effort_rate=round(rate, 2),
        effort_rates=rates,
        wait=None if effort is None else wait.state,
        awaits=wait.endpoint,
        sides_read=process.sides_read_ns >= lead.sample.idle_since_ns,
        beside=wait.beside or helpers.beside(process, since_ns, context, compared=_asks(lead)),
        holder=wait.holder,
        writes=wait.writes,
        ends_in_s=_ends_in_s(last, context),
        discounted=discounted(process, wait.state, since_ns, context),
    )


def _ends_in_s(reading: ThreadReading | None, context: ClassifyContext) -> float | None:
    deadline_ns = None if reading is None else reading.deadline_ns
    return None if deadline_ns is None else (deadline_ns - context.now_ns) / NS


def _asks(lead_thread: ThreadHistory) -> bool:
    # it burns a CPU or naps, so it left its call a moment ago
    return lead_thread.burning_since_ns is not None or lead_thread.naps_since_ns is not None


def _sleeps_anew(lead_thread: ThreadHistory, since_ns: int) -> bool:
    return lead_thread.sample.idle_since_ns - since_ns >= RETRIES_AFTER_S * NS


def _unsampled(process: ProcessHistory, context: ClassifyContext) -> RankSnapshot:
    return RankSnapshot(
        pid=process.pid,
        role=process.role or Role.HELPER,
        state=State.MOVING,
        tid=process.pid,
        rank=process.rank,
        text="not sampled yet",
        age_s=(context.now_ns - process.first_seen_ns) / NS,
    )


def _ended(
    process: ProcessHistory, process_exit: ProcessExit, context: ClassifyContext
) -> RankSnapshot:
    clean = process_exit.known and not (process_exit.signal or process_exit.exit_code)
    state = State.DUMPING if process.is_dumping else State.LEFT if clean else State.GONE
    return RankSnapshot(
        pid=process.pid,
        role=process.role or Role.HELPER,
        state=state,
        tid=process.pid,
        rank=process.rank,
        age_s=(context.now_ns - process_exit.boottime_ns) / NS,
        text=state.text if process.is_dumping else "exited",
        exit=exit_text(process_exit.signal, process_exit.exit_code, known=process_exit.known),
    )


def _state(
    process: ProcessHistory,
    lead_thread: ThreadHistory,
    readings: Sequence[ThreadReading],
    context: ClassifyContext,
    since_ns: int,
) -> Wait:
    sample = lead_thread.sample
    stopped = _STOPPED_STATE.get(sample.state)
    if stopped is not None:
        return Wait(stopped)
    if _lacks_quota(process, lead_thread):
        return Wait(State.THROTTLED)
    if lead_thread.burning_since_ns is not None:
        return Wait(_burning(process, lead_thread, context.ranks))
    if lead_thread.naps_since_ns is not None:
        return Wait(State.NAPPING)
    moved = lead_thread.progress_ns and context.now_ns - lead_thread.progress_ns < MOVED_RECENTLY_NS
    if sample.state is TaskState.RUNNING or (
        moved and context.now_ns - sample.idle_since_ns < MOVED_RECENTLY_NS
    ):
        return Wait(State.MOVING)
    if context.now_ns - _drained_ns(sample, context) < READER_DRAINS_NS:
        return Wait(State.MOVING)
    # a signal or a time-out only interrupts a wait, which began when the thread last did something else
    wait = judge_wait(process, sample, readings, context, since_ns)
    if wait.state in (State.FUTEX, State.HELPED) and _side_on_device(process, context):
        # another possible reason for its wait ends by itself, or is a thread of the driver, which waits for the
        # device too
        return Wait(State.ON_DEVICE)
    return wait


def _lacks_quota(process: ProcessHistory, lead_thread: ThreadHistory) -> bool:
    # it wants to run and gets little CPU: other threads of its group may use up the quota while it waits
    wants = lead_thread.sample.state is TaskState.RUNNING and lead_thread.cpu_share < BUSY_SHARE
    return wants and process.throttled_since_ns is not None


def _side_on_device(process: ProcessHistory, context: ClassifyContext) -> bool:
    # the lead waits for the thread that launches for it (autograd's), which waits for the device
    return any(
        side_thread.waits_in is Code.DEVICE or _sleeps_on_device(side_thread.sample, context)
        for side_thread in process.side_threads
    )


def _sleeps_on_device(sample: ThreadSample, context: ClassifyContext) -> bool:
    readings = context.readings(sample.pid, sample.tid)
    is_of_this_wait = bool(readings) and readings[-1].boottime_ns >= sample.idle_since_ns
    return is_of_this_wait and is_semaphore_of_driver(sample, readings[-1], context)


def _burning(
    process: ProcessHistory, lead_thread: ThreadHistory, ranks: Collection[ProcessHistory]
) -> State:
    code = lead_thread.waits_in
    if code is not None:
        return _WAITS_IN[code]
    if lead_thread.waits_busily:
        # CUDA's host threads that yield until their device is done (CU_CTX_SCHED_YIELD) make the same calls as MPI's
        # that wait for messages: before the stack was read often enough, nothing distinguishes them
        return State.ON_DEVICE if _may_be_on_device(process, lead_thread) else State.PEERS
    waited_ns = lead_thread.sample.run_delay_ns - lead_thread.burn_delay_ns
    total_ns = waited_ns + lead_thread.sample.cpu_ns - lead_thread.burn_cpu_ns
    lacks_cpu = total_ns > 2 * NS and waited_ns >= THROTTLED_SHARE * total_ns
    if lacks_cpu and not shares_shortage(process, ranks):
        return State.THROTTLED
    return with_cpu(process, lead_thread)


def shares_shortage(process: ProcessHistory, ranks: Iterable[ProcessHistory]) -> bool:
    """True if the others here get as little of the CPU that they want, and no quota limits this rank alone."""
    if process.lead is None or process.throttled_since_ns is not None:
        return False
    shares = [rank.lead.denied_share for rank in ranks if rank is not process and rank.lead]
    return bool(shares) and process.lead.denied_share < EFFORT_FACTOR * median(shares)


def with_cpu(process: ProcessHistory, lead_thread: ThreadHistory) -> State:
    """The state of a rank whose lead thread uses, or wants, a CPU and waits in no known library."""
    if not lead_thread.spins_in_place:
        return State.COMPUTING
    # a thread that reads a clock until its device is done may be found only in the C library and the vDSO
    is_own = lead_thread.called_by_own or not _may_be_on_device(process, lead_thread)
    return State.SPINNING if is_own else State.ON_DEVICE


def _may_be_on_device(process: ProcessHistory, lead_thread: ThreadHistory) -> bool:
    return process.code.drives_device and lead_thread.in_plumbing


def _efforts(
    process: ProcessHistory,
    wait: Wait,
    readings: Sequence[ThreadReading],
    context: ClassifyContext,
    since_ns: int,
) -> tuple[Effort | None, float, EffortRates | None]:
    """The effort made during a wait, its rate in units of the smallest that counts, and the rates of all kinds."""
    if wait.state in _NO_WAIT:
        return None, 0.0, None
    # only what was done during the wait can explain it
    working = _working_children(process, wait, since_ns, context)
    if wait.state is State.STORAGE:
        # the call itself is the wait, so there is nothing to compare it with
        moves = not wait.proven and _moves_in_call(process, readings, context)
        effort, rate = (Effort.STORAGE, CERTAIN) if moves else (None, 0.0)
    else:
        own = _own_effort(process, since_ns, context)
        effort, rate = _of_children(process, working, wait) if own is None else own
    compute, storage = process.efforts.most(since_ns, context.now_ns - EFFORT_WINDOW_NS)
    rates = EffortRates(round(compute, 2), round(storage, 2), float(len(working)))
    return effort, rate, rates


def _of_children(
    process: ProcessHistory, working: Sequence[ProcessHistory], wait: Wait
) -> tuple[Effort | None, float]:
    if not working:
        return None, 0.0
    # unless it is known to wait for them, children that always move explain no more than those of its peers
    awaited = any(
        child.pid in wait.waits_for or _may_release(process, child, wait) for child in working
    )
    return Effort.CHILDREN, CERTAIN if awaited else float(len(working))


def _working_children(
    process: ProcessHistory, wait: Wait, since_ns: int, context: ClassifyContext
) -> list[ProcessHistory]:
    if wait.state not in _MAY_WAIT_FOR_CHILDREN:
        return []
    usual = process.efforts.background
    return [
        child
        for child in context.children(process.pid)
        if (
            (
                child.pid in wait.waits_for
                or not usual.has_run(child.name, context.now_ns - child.first_seen_ns)
            )
            and (_works(child, since_ns, context) or _paces(child, wait, since_ns, context))
        )
        or (_may_release(process, child, wait) and _moves(child, since_ns, context))
    ]


def _may_release(process: ProcessHistory, child_process: ProcessHistory, wait: Wait) -> bool:
    """True if it waits in shared memory and this child is a fork of it, which has that memory."""
    seen, child_seen = process.seen, child_process.seen
    is_fork = seen is not None and child_seen is not None and seen.argv == child_seen.argv
    return wait.shared and is_fork


def _moves(child_process: ProcessHistory, since_ns: int, context: ClassifyContext) -> bool:
    """True if a child does anything, be it what it always does: that may be what its parent waits for."""
    lead, recent_ns = child_process.lead, max(since_ns, context.now_ns - EFFORT_WINDOW_NS)
    if lead is None or lead.sample.state in _STOPPED_STATE or lead.spins_in_place:
        return False
    return lead.burning_since_ns is not None or lead.progress_ns > recent_ns


def _paces(
    child_process: ProcessHistory, wait: Wait, since_ns: int, context: ClassifyContext
) -> bool:
    # a rank in wait() is judged by the sleeps of its child; elsewhere that child may be what it waits for
    recent_ns = context.now_ns - EFFORT_WINDOW_NS
    return wait.state is not State.CHILD and child_process.efforts.is_paced(since_ns, recent_ns)


def _moves_in_call(
    process: ProcessHistory, readings: Sequence[ThreadReading], context: ClassifyContext
) -> bool:
    # one long call: its bytes are charged when it begins, so they count for longer
    moved_ns = process.efforts.storage_moved_ns
    moved = moved_ns > 0 and context.now_ns - moved_ns <= STORAGE_WINDOW_NS
    return moved or is_completing(readings)


def _own_effort(
    process: ProcessHistory, since_ns: int, context: ClassifyContext
) -> tuple[Effort, float] | None:
    recent_ns = context.now_ns - EFFORT_WINDOW_NS
    effort = process.efforts.during(since_ns, recent_ns)
    if effort is not None:
        return effort, process.efforts.rates[effort]
    if any(
        process.traffic.transfer_ns(sample) >= max(since_ns, recent_ns)
        and not process.traffic.is_stream(sample)
        for sample in context.ends.outside(process)
    ):
        # a checkpoint that is uploaded, or a shard that is fetched: a store on the network
        return Effort.STORAGE, CERTAIN
    return None


def _works(child_process: ProcessHistory, since_ns: int, context: ClassifyContext) -> bool:
    if child_process.lead is not None and child_process.lead.sample.state in _STOPPED_STATE:
        return False
    if _own_effort(child_process, since_ns, context) is not None:
        return True
    lead, recent_ns = child_process.lead, max(since_ns, context.now_ns - EFFORT_WINDOW_NS)
    if lead is None:
        return child_process.first_seen_ns >= recent_ns
    if lead.burning_since_ns is not None:
        return not lead.spins_in_place
    rhythm, runs = child_process.rhythm, lead.sample.state is TaskState.RUNNING
    # a child that wakes periodically is found on a CPU now and then
    return rhythm.unusual_ns > recent_ns or (runs and not rhythm.is_known)


def _state_since(process: ProcessHistory, state: State, since_ns: int) -> int:
    # short activity while throttled does not end that state
    quota_ns = process.throttled_since_ns if state is State.THROTTLED else None
    return since_ns if quota_ns is None else quota_ns


def _quota(process: ProcessHistory, state: State) -> str:
    lacks = state is State.THROTTLED and process.throttled_since_ns is not None
    return ", throttled by the CPU quota of its control group" if lacks else ""


def _drained_ns(sample: ThreadSample, context: ClassifyContext) -> int:
    # what it writes is being read, so its wait moves on, though it sleeps until there is more room
    fd = written_fd(sample, context.table)
    return 0 if fd is None else context.drained_ns(sample.pid, fd)


def _since(lead_thread: ThreadHistory, process: ProcessHistory) -> int:
    burns_ns = lead_thread.burns_alike_ns
    if burns_ns is not None:
        # bytes that moved meanwhile show several waits
        return max(burns_ns, process.data_ns if lead_thread.waits_in is not None else 0)
    # A thread that only wakes to wait again left a CPU a moment ago, and each time its arguments may lie elsewhere;
    # it has been here since it last did something else.
    progress_ns = max(lead_thread.progress_ns, process.data_ns)
    since_ns = min(
        lead_thread.sample.idle_since_ns, progress_ns or lead_thread.sample.site_since_ns
    )
    return max(since_ns, lead_thread.burnt_until_ns, lead_thread.stopped_since_ns)
