"""Determines what a blocked thread waits for, from its call, its files and the threads and processes around it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kcover_ebpf.diagnosis.history.code_map import Code, of_stack
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.sampled_call import (
    is_shared_futex,
    poll_timeout_ms,
    waits_in_frame,
)
from kcover_ebpf.diagnosis.waits import file_servers, helpers
from kcover_ebpf.diagnosis.waits.classify_context import ClassifyContext
from kcover_ebpf.facts.host import STREAM_KINDS, ThreadReading, WaitedFile
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily
from kcover_ebpf.ids import NS, Endpoint, Pid, Tid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.diagnosis import (
    FREEZE_PATIENCE_NS,
    READER_DRAINS_NS,
    SLEEP_CAP_S,
    STORAGE_ANSWER_NS,
)

# any program may change a file or send a signal
_OUTSIDE_KINDS = frozenset({"udp", "stream", "inotify", "fanotify", "signalfd"})


class Wait(NamedTuple):
    """What a lead thread waits for, and how certain it is that the wait cannot end."""

    state: State
    proven: bool = False
    waits_for: tuple[Pid, ...] = ()
    endpoint: Endpoint | None = None
    """Far end of the TCP connection it waits for, if no process here has that end; else None."""
    beside: tuple[str, ...] = ()
    """What its side threads wait for that may release it."""
    holder: Tid | None = None
    """The thread of its own process that it waits for; None if unknown."""
    writes: bool = False
    """Its output into a pipe or Unix socket has not been read for seconds."""
    shared: bool = False
    """It waits at a futex in shared memory, which a process that it forked may release."""


def judge_wait(
    process: ProcessHistory,
    sample: ThreadSample,
    readings: Sequence[ThreadReading],
    context: ClassifyContext,
    began_ns: int,
) -> Wait:
    """The wait of a blocked lead thread. `readings` are those since it last continued.

    `began_ns`: when it last did something else; a thread that polls entered its present call a moment ago.

    The family of the system call decides, then the kinds of its files. Processes of the job that can end it are in
    `waits_for`; OUTSIDE means that a program outside of the job can end it.
    """
    reading = readings[-1] if readings else None
    family = context.table.family(sample.syscall)
    if sample.syscall == NO_SYSCALL:
        return Wait(State.FAULTING)
    if family is SyscallFamily.IOCTL:
        return Wait(State.ON_DEVICE if _awaits_device(sample, reading) else State.DEVICE)
    if family is SyscallFamily.FUTEX:
        return _at_futex(process, sample, reading, context, began_ns)
    if family is SyscallFamily.SLEEP:
        return Wait(_sleeping(reading, context))
    if family is SyscallFamily.SIGNAL and reading is not None:
        return Wait(State.SLEEPING if reading.timed else State.SLEEP_LONG)
    if family is SyscallFamily.CHILD:
        children = tuple(child.pid for child in context.children(process.pid))
        # the call returns at once if there is no child (wait(2), ECHILD): there is one that was not seen yet
        return Wait(State.CHILD if children else State.OUTSIDE, waits_for=children)
    if reading is not None and reading.lock_holders:
        return Wait(State.LOCK, waits_for=reading.lock_holders)
    on_files = _on_files(process, sample, family, readings, context)
    if on_files is not None:
        return on_files
    if file_servers.is_storage(sample, family, reading):
        return Wait(State.STORAGE, _storage_proven(sample, readings, context))
    return Wait(State.OTHER)


# drivers in whose calls a host thread sleeps until the device has done its work: amdgpu's KFD, DRM's fences, accel
_DEVICE_WAITS = ("/dev/kfd", "/dev/dri/", "/dev/accel/")
# by poll, where the program asked its driver to sleep until the device is done: no child could end that wait
_POLLED_DEVICES = (*_DEVICE_WAITS, "/dev/nvidia")


def _awaits_device(sample: ThreadSample, reading: ThreadReading | None) -> bool:
    # in state D it waits for the driver itself
    if reading is None or sample.state is not TaskState.SLEEPING:
        return False
    return any(file.target.startswith(_DEVICE_WAITS) for file in reading.files)


def _at_futex(
    process: ProcessHistory,
    sample: ThreadSample,
    reading: ThreadReading | None,
    context: ClassifyContext,
    began_ns: int,
) -> Wait:
    if is_semaphore_of_driver(sample, reading, context):
        return Wait(State.ON_DEVICE)
    if reading is not None and reading.lock_holders:
        return Wait(State.LOCK, waits_for=reading.lock_holders)
    holder = None if reading is None else reading.lock_thread
    found = helpers.of_holder(process, holder, context)
    if found is None:
        found = helpers.beside(process, began_ns, context)
    state, is_forsaken = State.HELPED if found else State.FUTEX, _is_forsaken(process) and not found
    return Wait(state, is_forsaken, beside=found, holder=holder, shared=is_shared_futex(sample))


def _is_rank(process: ProcessHistory) -> bool:
    return process.membership is not None and process.membership.role is Role.RANK


def _is_forsaken(process: ProcessHistory) -> bool:
    # All its threads sleep at futexes that no other process can reach, without a time-out: none is left to wake
    # another. A process that was forked while another thread owned a lock ends like this.
    totals = process.totals
    return totals is not None and 0 < totals.thread_count == totals.forsaken_count


def _sleeping(reading: ThreadReading | None, context: ClassifyContext) -> State:
    if reading is None or reading.deadline_ns is None:
        return State.SLEEPING
    endless = reading.deadline_ns - context.now_ns > SLEEP_CAP_S * NS
    return State.SLEEP_LONG if endless else State.SLEEPING


def _on_files(
    process: ProcessHistory,
    sample: ThreadSample,
    family: SyscallFamily,
    readings: Sequence[ThreadReading],
    context: ClassifyContext,
) -> Wait | None:
    reading = readings[-1] if readings else None
    files = reading.files if reading is not None else ()
    kinds = {context.kind(process.pid, file) for file in files}
    opening = reading is not None and reading.wait_channel in _FIFO_CHANNELS
    if opening or "fifo" in kinds:
        # a process here or outside of the job may open it at any moment
        return Wait(State.READ, waits_for=_holders(process, files, context))
    if "file" in kinds and family in (SyscallFamily.READ, SyscallFamily.WRITE, SyscallFamily.FILE):
        return Wait(State.STORAGE, _storage_proven(sample, readings, context))
    at_end = None if reading is None else _until_an_end(process, reading, kinds, context)
    if at_end is not None:
        return at_end
    if "tcp" in kinds:
        return _on_tcp(process, files, context)
    if kinds & _OUTSIDE_KINDS or ("socket" in kinds and not _is_rank(process)):
        # a request to a name server, or of a ring whose file is not known; a socket of another process that is not
        # TCP, or was not sampled yet
        return Wait(State.OUTSIDE)
    if "tty" in kinds or any(_leads_to_user(process, file, context) for file in files):
        return Wait(State.USER)
    if kinds == {"eventfd"} and family is SyscallFamily.READ:
        # usually one of its own threads writes to it, but any process that has it may
        found = helpers.beside(process, sample.idle_since_ns, context)
        return Wait(State.HELPED if found else State.OTHER, beside=found)
    if kinds & STREAM_KINDS:
        return _on_stream(process, sample, files, context)
    if family is SyscallFamily.POLL:
        return _in_poll(process, sample, files, context)
    return Wait(State.PEERS) if family is SyscallFamily.NETWORK else None


def _until_an_end(
    process: ProcessHistory,
    reading: ThreadReading,
    kinds: Collection[str],
    context: ClassifyContext,
) -> Wait | None:
    """The wait for a timer by descriptor, or for the end of a process, of the job or outside of it; else None."""
    if kinds == {"timerfd"} and reading.timed:
        return Wait(_sleeping(reading, context))
    if "pidfd" not in kinds:
        return None
    awaited = _holders(process, reading.files, context)
    return Wait(State.CHILD if awaited else State.OUTSIDE, waits_for=awaited)


def _leads_to_user(process: ProcessHistory, file: WaitedFile, context: ClassifyContext) -> bool:
    """True for the input that the job was started with; a child's may come from another process of the job."""
    if file.fd != 0:
        return False
    if _is_rank(process) or not context.holders(process.pid, file):
        return True
    return any((0, file.inode) in rank.descriptors for rank in context.ranks)


def _in_poll(
    process: ProcessHistory,
    sample: ThreadSample,
    files: Sequence[WaitedFile],
    context: ClassifyContext,
) -> Wait:
    if any(file.target.startswith(_POLLED_DEVICES) for file in files):
        return Wait(State.ON_DEVICE)
    offspring = tuple(child.pid for child in context.children(process.pid))
    timed = poll_timeout_ms(sample, context.table) not in (None, 0)
    return Wait(State.CHILD, waits_for=offspring) if offspring and timed else Wait(State.PEERS)


def _on_tcp(process: ProcessHistory, files: Sequence[WaitedFile], context: ClassifyContext) -> Wait:
    peers = _holders(process, files, context)
    if peers:
        return Wait(State.PEERS, waits_for=peers)
    found = (process.sockets.get(file.fd) for file in files)
    sockets = [socket for socket in found if socket is not None and socket.remote[1]]
    if any(map(context.ends.leads_to_launcher, sockets)):
        # what it asks the store for comes from another rank
        return Wait(State.PEERS)
    # a loader exchanges nothing with other ranks: an unknown far end is outside the job, wherever the ranks are
    outside = not _is_rank(process) or context.all_here
    outside = outside or (
        bool(sockets) and all(context.ends.leads_outside(process.pid, socket) for socket in sockets)
    )
    far = {Endpoint(*socket.remote) for socket in sockets}
    awaits = far.pop() if len(far) == 1 else None
    return Wait(State.OUTSIDE if outside else State.PEERS, endpoint=awaits)


def _on_stream(
    process: ProcessHistory,
    sample: ThreadSample,
    files: Sequence[WaitedFile],
    context: ClassifyContext,
) -> Wait:
    streams = [file for file in files if context.kind(process.pid, file) in STREAM_KINDS]
    if all(context.is_own(process.pid, file) for file in streams):
        # an event loop that its own threads wake: in effect a lock, or a sleep until its next timer
        if (poll_timeout_ms(sample, context.table) or 0) > 0:
            return Wait(State.SLEEPING)
        found = helpers.beside(process, sample.idle_since_ns, context)
        return Wait(State.HELPED if found else State.FUTEX, beside=found)
    holders = _holders(process, files, context)
    offspring = tuple(child.pid for child in context.children(process.pid))
    own = tuple(pid for pid in offspring if pid in holders)
    # A live reader wakes its writer periodically, or makes its queue shorter. One that does not read waits for nothing
    # that the writer could give.
    is_write = context.table.family(sample.syscall) is SyscallFamily.WRITE
    read_ns = max(sample.idle_since_ns, context.drained_ns(process.pid, sample.args[0]))
    writes = is_write and context.now_ns - read_ns >= READER_DRAINS_NS
    if own or (offspring and not holders):
        return Wait(State.CHILD, waits_for=own or offspring, writes=writes)
    # a stream without another end has ended; one that lasts leads to a program outside the job
    is_known = bool(holders) or writes
    return Wait(State.READ if is_known else State.OUTSIDE, waits_for=holders, writes=writes)


def _holders(
    process: ProcessHistory, files: Sequence[WaitedFile], context: ClassifyContext
) -> tuple[Pid, ...]:
    found: set[Pid] = set()
    for file in files:
        found.update(context.holders(process.pid, file))
    return tuple(sorted(found))


# fs/pipe.c: the open of a FIFO waits for its partner in this function
_FIFO_CHANNELS = frozenset({"wait_for_partner"})
# fs/super.c: a writer held off by freeze_super()
_FREEZE_CHANNELS = ("percpu_rwsem", "sb_start_write", "__sb_start_write")


def is_semaphore_of_driver(
    sample: ThreadSample, reading: ThreadReading | None, context: ClassifyContext
) -> bool:
    """True if the thread sleeps until its device is done: in its own frame, called from the driver's library."""
    return (
        waits_in_frame(sample, context.table)
        and reading is not None
        and of_stack(reading.stack) is Code.DEVICE
    )


def is_completing(readings: Sequence[ThreadReading]) -> bool:
    """True if the device or server that a thread waits for answered requests between the last two readings."""
    if len(readings) < 2:
        return False
    before, last = readings[-2].storage, readings[-1].storage
    if before is None or last is None or before.device != last.device:
        return False
    return last.completed_count > before.completed_count


def _storage_proven(
    sample: ThreadSample, readings: Sequence[ThreadReading], context: ClassifyContext
) -> bool:
    # Slow storage recovers by itself, however long one call lasts: a close may upload a whole file. Stuck is only
    # what answers no process: a server that leaves a probe unanswered, a frozen file system, a suspended device, or
    # requests in flight of which none was completed.
    if not readings:
        return False
    if file_servers.is_unanswered(context.probes.get((sample.pid, sample.tid)), sample):
        return True
    first, last = readings[0], readings[-1]
    span_ns = last.boottime_ns - first.boottime_ns
    if any(word in last.wait_channel for word in _FREEZE_CHANNELS):
        return span_ns >= FREEZE_PATIENCE_NS
    if last.storage is None or first.storage is None:
        return False
    if last.storage.suspended:
        return True
    stalled = last.storage.completed_count == first.storage.completed_count
    is_server = last.storage.device.startswith(file_servers.NO_DEVICE)
    patience_ns = context.policy.storage_patience_s * NS if is_server else STORAGE_ANSWER_NS
    return stalled and last.storage.inflight_count > 0 and span_ns >= patience_ns
