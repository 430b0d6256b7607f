"""Who of its own process a lead thread at a lock may be waiting for: a side thread that waits for something that ends.

A futex is an edge to "a thread of mine". If one is seen that began to wait for a timer, a file, a service or another
program when the lead did, or since, the edge leads to that. A thread that has slept there for long, or as it always did
while its rank trained on, does not release the lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.sampled_call import is_timed, poll_timeout_ms
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.diagnosis.membership.endpoints import is_accepted
from kcover_ebpf.diagnosis.waits.classify_context import ClassifyContext
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import SocketSample, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily
from kcover_ebpf.ids import NS, Inode, Tid
from kcover_ebpf.tunables.certainty import (
    HELPER_SINCE_S,
    TIMER_LEFT_NS,
    TIMER_UNSEEN_NS,
    USUAL_FACTOR,
)
from kcover_ebpf.tunables.diagnosis import EFFORT_WINDOW_NS, OPEN_QUESTION_NS, SLEEP_CAP_S
from kcover_ebpf.tunables.links import LOST_BACKOFF

_TICK_NS = 10_000_000
"""Nanoseconds of the longest tick in which the kernel counts the times of a socket (CONFIG_HZ=100)."""
TIMER, STORAGE, SERVICE, STREAM = "timer", "storage", "service", "another program"
TIMED = "a wait with a time-out"
"""At a futex or in a poll: what it waits for may come before, so it is no sleep; and collectives may have one."""
_STREAMS = frozenset({SyscallFamily.READ, SyscallFamily.NETWORK})
_FILES = frozenset({SyscallFamily.FILE, SyscallFamily.ASYNC_IO})


def beside(
    process: ProcessHistory, began_ns: int, context: ClassifyContext, *, compared: bool = False
) -> tuple[str, ...]:
    """What the side threads of a process wait for since its lead began to wait, each word once, in order.

    Children that were begun since then count as well: who waits at a barrier of processes sleeps like one at a lock.

    `compared`: only to compare other ranks with it. Its time-outs are not read then, and each may be a long one.
    """
    since_ns = began_ns - round(HELPER_SINCE_S * NS)
    threads = [thread for thread in _recent(process, since_ns) if not _is_usual(thread, context)]
    words = (_waits_for(thread.sample, process, context, follows=True) for thread in threads)
    found = {word for word in words if word is not None}
    if any(_was_begun_for_it(thread.sample, since_ns, context) for thread in threads):
        found.add(TIMER)
    if any(
        _naps(sample, owner, context)
        for sample, owner in _at_new_work(process, threads, since_ns, context)
    ):
        found.add(TIMER)
    if process.efforts.is_paced(began_ns, context.now_ns - EFFORT_WINDOW_NS):
        # whatever sleeps were its habit, this thread moves more bytes than usual between them
        found.add(TIMER)
    if compared and any(is_timed(thread.sample, context.table) for thread in threads):
        found.add(TIMED)
    if _asks_outside(process, began_ns - NS, context):
        found.add(SERVICE)
    return tuple(sorted(found))


def of_holder(
    process: ProcessHistory, tid: Tid | None, context: ClassifyContext
) -> tuple[str, ...] | None:
    """What the thread that holds a lock waits for itself, since whenever: no other thread releases it.

    Empty where nothing that ends by itself is known; None where the thread is not, or does not wait.
    """
    thread = None if tid is None else process.threads.get(tid)
    if thread is None or thread is process.lead or thread.sample.state is TaskState.RUNNING:
        return None
    word = _waits_for(thread.sample, process, context, follows=True)
    return () if word is None else (word,)


def wakes_as_usual(process: ProcessHistory, began_ns: int, context: ClassifyContext) -> bool:
    """True if a side thread woke since its lead began to wait, from a wait beside which its rank used to train on."""
    since_ns = began_ns - round(HELPER_SINCE_S * NS)
    return any(_is_usual(thread, context) for thread in _recent(process, since_ns))


def _recent(process: ProcessHistory, since_ns: int) -> Iterator[ThreadHistory]:
    """The side threads that came to where they are since then, and do not just nap as before."""
    # of thousands of threads at rest none has come since
    for thread in process.side_threads if process.sides_sampled_ns >= since_ns else ():
        naps_ns = thread.naps_since_ns
        if thread.sample.idle_since_ns >= since_ns and (naps_ns is None or naps_ns >= since_ns):
            yield thread


def _at_new_work(
    process: ProcessHistory,
    threads: Sequence[ThreadHistory],
    since_ns: int,
    context: ClassifyContext,
) -> Iterator[tuple[ThreadSample, ProcessHistory]]:
    """Children that were forked since then, and threads in a call in which they never were while the rank trained."""
    for child in context.children(process.pid):
        if child.lead is not None and child.lead.sample.start_ns >= since_ns:
            yield child.lead.sample, child
    for thread in threads:
        if thread.is_new_in_call:
            yield thread.sample, process


def _naps(sample: ThreadSample, process: ProcessHistory, context: ClassifyContext) -> bool:
    """True if it had just begun to sleep again when it was last visited: it retries, or paces its work.

    In one sleep it may stay for ever.
    """
    is_asleep = sample.state is TaskState.SLEEPING
    visited_ns = context.now_ns if process.totals is None else process.totals.boottime_ns
    is_recent = visited_ns - sample.idle_since_ns < HELPER_SINCE_S * NS
    return is_asleep and is_recent and context.table.family(sample.syscall) is SyscallFamily.SLEEP


def _was_begun_for_it(sample: ThreadSample, since_ns: int, context: ClassifyContext) -> bool:
    # a thread that is as young as the wait tries something until it is done, however short it sleeps in between
    is_young = sample.start_ns >= since_ns and sample.state is TaskState.SLEEPING
    return is_young and context.table.family(sample.syscall) is SyscallFamily.SLEEP


def _is_usual(thread: ThreadHistory, context: ClassifyContext) -> bool:
    """True if its rank trained on beside waits of it that were as long: a heartbeat, a monitor, telemetry."""
    sample, usual_ns = thread.sample, thread.usual_wait_ns
    deadline_ns = _deadline_ns(sample, context)
    # one that was not sent again may have slept anew in the same place ever since
    ends_ns = sample.boottime_ns if deadline_ns is None else deadline_ns
    return usual_ns > 0 and ends_ns - sample.idle_since_ns <= USUAL_FACTOR * usual_ns


def _deadline_ns(sample: ThreadSample, context: ClassifyContext) -> int | None:
    """When its present wait ends by itself; None where that was not read, or it does not."""
    readings = context.readings(sample.pid, sample.tid)
    if readings and readings[-1].boottime_ns >= sample.idle_since_ns:
        return readings[-1].deadline_ns
    # the time-out of a poll is among its arguments
    timeout_ms = poll_timeout_ms(sample, context.table) or -1
    return None if timeout_ms < 0 else sample.idle_since_ns + timeout_ms * 1_000_000


def _waits_for(
    sample: ThreadSample, process: ProcessHistory, context: ClassifyContext, *, follows: bool
) -> str | None:
    # `follows`: a pipe or Unix socket to the children at its other end
    if sample.state is TaskState.UNINTERRUPTIBLE:
        return STORAGE
    if sample.state is not TaskState.SLEEPING or _serves(sample, context):
        return None
    family = context.table.family(sample.syscall)
    if is_timed(sample, context.table) or (poll_timeout_ms(sample, context.table) or 0) > 0:
        word = TIMER if family is SyscallFamily.SLEEP else TIMED
        return word if _is_timer(sample, context) else None
    if family in _STREAMS:
        if (socket := _socket(sample, process)) is not None:
            return SERVICE if _asks_by(socket, process, context) else None
        return _by_stream(sample, process, context) if follows else None
    return STORAGE if family in _FILES else None


def _serves(sample: ThreadSample, context: ClassifyContext) -> bool:
    # whoever waits for the next client waits for none that is known
    return context.table.name(sample.syscall) in ("accept", "accept4")


def _socket(sample: ThreadSample, process: ProcessHistory) -> SocketSample | None:
    """The TCP socket that a thread reads; None where it reads another file."""
    fd = sample.args[0]
    socket = process.sockets.get(fd)
    if socket is None or socket.boottime_ns >= sample.idle_since_ns:
        return socket
    # one that was closed since: its number is another file's, which is reported at each pass
    is_reused = any(descriptor.fd == fd for descriptor in process.descriptors.values())
    return None if is_reused else socket


def _asks_by(socket: SocketSample, process: ProcessHistory, context: ClassifyContext) -> bool:
    return context.ends.leads_outside(process.pid, socket) and not is_accepted(process, socket)


def _by_stream(
    sample: ThreadSample, process: ProcessHistory, context: ClassifyContext
) -> str | None:
    """What is at the other end of the pipe or Unix socket that a side thread reads: a program, or its children's wait.

    A reader of answers from children that are idle themselves, as a pool of workers has one, waits for nothing.
    """
    file = WaitedFile(sample.args[0], "", "", Inode(0), "", "")
    if context.is_own(process.pid, file):
        return None
    holders = set(context.holders(process.pid, file))
    children = {child.pid: child for child in context.children(process.pid)}
    if not holders or holders - children.keys():
        return STREAM
    for child in (children[pid] for pid in sorted(holders)):
        sampled = None if child.lead is None else child.lead.sample
        word = sampled and _waits_for(sampled, child, context, follows=False)
        if word:
            return word
        if _asks_outside(child, sample.idle_since_ns, context):
            return SERVICE
    return None


def _is_timer(sample: ThreadSample, context: ClassifyContext) -> bool:
    """True until the known end of a wait that was meant to last.

    A thread that naps, or an interpreter that waits for its own lock, asks again after milliseconds.
    """
    ends_ns = _deadline_ns(sample, context)
    if ends_ns is None:
        # Not read yet, or it cannot be: it has slept for as long as it was seen to. One that naps has slept again and
        # again since.
        is_sleep = context.table.family(sample.syscall) is SyscallFamily.SLEEP
        return is_sleep and sample.boottime_ns - sample.idle_since_ns >= TIMER_LEFT_NS
    lasts_ns = ends_ns - sample.idle_since_ns
    # a thread that was not seen since its sleep ended may sleep again
    ended_ns = ends_ns if sample.boottime_ns >= ends_ns else ends_ns + TIMER_UNSEEN_NS
    # the time-out of a framework is as good as none
    return context.now_ns < ended_ns and TIMER_LEFT_NS <= lasts_ns <= SLEEP_CAP_S * NS


def _asks_outside(process: ProcessHistory, began_ns: int, context: ClassifyContext) -> bool:
    """True if the process has sent a question out of the job since then, and is not known to do so all the time."""
    return any(
        sample.last_send_ns >= began_ns
        and (not process.traffic.is_habit(sample) or _owes_answer(sample, context.now_ns))
        for sample in context.ends.outside(process)
    )


def _owes_answer(sample: SocketSample, now_ns: int) -> bool:
    # Telemetry is answered at once, sent again and again without an answer, or not even acknowledged. Where a
    # question is open for a while, the process may wait for its answer, whatever else goes to that address.
    if sample.backoff >= LOST_BACKOFF:
        return False
    asked_ns = sample.last_send_ns
    return asked_ns > sample.last_receive_ns + _TICK_NS and now_ns - asked_ns >= OPEN_QUESTION_NS
