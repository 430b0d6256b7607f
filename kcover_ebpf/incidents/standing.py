"""Where one process stands at one moment: does it work, wait, or can it not go on by itself.

The states are ordered into three groups: *effort* (it works, others may wait), *waiting* (somebody
else must do something) and *stuck* (a sink: nothing the job can do ends this).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from kcover_ebpf.facts import NO_SYSCALL, Inspection, Pid, TaskState, ThreadSample, WaitedFile
from kcover_ebpf.incidents.processes import NS, Effort, ProcessView
from kcover_ebpf.incidents.threads import ThreadView, poll_timeout_ms
from kcover_ebpf.settings import Policy
from kcover_ebpf.syscalls import Family, SyscallTable

SLEEP_CAP_S = 600.0
"""A timed wait that ends later than this is as good as endless for the ranks that wait for it."""
_RECENT_NS = 1_500_000_000
_EFFORT_WINDOW_NS = 3 * NS
_SPIN_SAMPLES = 8
_SPIN_SAME_SHARE = 0.8


class State(Enum):
    """Where the lead thread of a process stands."""

    MOVING = "moving"
    COMPUTING = "computing"
    STORING = "storing"
    CHILDREN = "children at work"
    SLEEPING = "sleeping"
    USER = "waiting for a user"
    TRACED = "held by a debugger"
    PEERS = "waiting for peers"
    FUTEX = "futex"
    CHILD = "waiting for a child"
    LEFT = "left"
    GONE = "gone"
    STOPPED = "stopped"
    FROZEN = "frozen"
    THROTTLED = "without a CPU"
    SLEEP_LONG = "sleeping without end"
    READ = "reading"
    LOCK = "file lock"
    STORAGE = "in a storage call"
    DEVICE = "in a driver call"
    FAULTING = "in a page fault"
    SPINNING = "spinning"
    OTHER = "in an unknown wait"


EFFORT = frozenset(
    {State.MOVING, State.COMPUTING, State.STORING, State.CHILDREN, State.SLEEPING, State.USER}
)
"""Legitimate: these ranks explain why others wait."""
HELD = frozenset({State.STOPPED, State.FROZEN, State.TRACED})
STUCK = frozenset(
    {State.SLEEP_LONG, State.READ, State.LOCK, State.STORAGE, State.DEVICE, State.FAULTING}
    | {State.SPINNING, State.OTHER}
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a process stands; `since_ns` is the boottime when that began, as well as it is known."""

    pid: Pid
    tid: int
    rank: int | None
    state: State
    since_ns: int
    text: str
    """The call decoded for people."""
    inspection: Inspection | None = None
    proven: bool = False
    """The state itself proves that it will not end (a suspended device, a frozen file system)."""
    waits_for: tuple[Pid, ...] = ()
    """Processes of the job that it waits for by a pipe, socket, lock or wait()."""
    effort: Effort | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """What a process is judged with: the other processes of its job and the closer looks at its threads."""

    now_ns: int
    policy: Policy
    table: SyscallTable
    children: Callable[[Pid], Sequence[ProcessView]]
    holders: Callable[[Pid, WaitedFile], tuple[Pid, ...]]
    """Processes of the job that hold the other end of a file."""
    inspections: Callable[[Pid, int], Sequence[Inspection]]
    """Closer looks at a thread, oldest first."""
    kind: Callable[[Pid, WaitedFile], str]
    """What a file really is (a socket's protocol is not in its name)."""


def stand(view: ProcessView, scene: Scene) -> Standing:
    """Judge one process by its lead thread, its other threads and its children."""
    lead = view.lead
    rank = view.member.rank if view.member else None
    if view.exit is not None:
        state = State.LEFT if not (view.exit.signal or view.exit.exit_code) else State.GONE
        return Standing(view.pid, view.pid, rank, state, view.exit.boottime_ns, "exited")
    if lead is None:
        return Standing(
            view.pid, view.pid, rank, State.MOVING, view.first_seen_ns, "not sampled yet"
        )
    looks = [
        look
        for look in scene.inspections(view.pid, lead.sample.tid)
        if look.boottime_ns >= lead.progress_ns
    ]
    last = looks[-1] if looks else None
    state, proven, waits_for = _state(view, lead, looks, scene)
    effort = None
    if state not in HELD and state is not State.MOVING:
        effort = _effort(view, state, scene)
        if effort is not None:
            state, proven = _EFFORT_STATE[effort], False
    since_ns = _since(lead, view)
    text = describe(lead.sample, last, scene.table, state)
    return Standing(
        view.pid, lead.sample.tid, rank, state, since_ns, text, last, proven, waits_for, effort
    )


_EFFORT_STATE = {
    Effort.COMPUTE: State.COMPUTING,
    Effort.STORAGE: State.STORING,
    Effort.CHILDREN: State.CHILDREN,
}

_Judged = tuple[State, bool, tuple[Pid, ...]]


def _state(
    view: ProcessView, lead: ThreadView, looks: Sequence[Inspection], scene: Scene
) -> _Judged:
    sample = lead.sample
    held = {
        TaskState.STOPPED: State.STOPPED,
        TaskState.FROZEN: State.FROZEN,
        TaskState.TRACED: State.TRACED,
    }.get(sample.state)
    if held is not None:
        return held, False, ()
    if lead.burning_since_ns is not None:
        return _burning(lead, looks, scene), False, ()
    if lead.progress_ns and scene.now_ns - lead.progress_ns < _RECENT_NS:
        if scene.now_ns - sample.idle_since_ns < _RECENT_NS:
            return State.MOVING, False, ()
    if sample.state is TaskState.RUNNING:
        return State.MOVING, False, ()
    return _blocked(view, sample, looks, scene)


def _burning(lead: ThreadView, looks: Sequence[Inspection], scene: Scene) -> State:
    if lead.waits_busily:
        return State.PEERS
    share = _delay_share(lead)
    if share >= 0.9:
        return State.THROTTLED
    return State.SPINNING if spins_in_place(lead, looks) else State.COMPUTING


def _delay_share(lead: ThreadView) -> float:
    total = lead.sample.run_delay_ns - lead.burn_delay_ns
    used = lead.sample.cpu_ns - lead.burn_cpu_ns
    return total / (total + used) if total + used > 2 * NS else 0.0


def spins_in_place(lead: ThreadView, looks: Sequence[Inspection]) -> bool:
    """True when a burning thread was looked at often and nothing on its stack ever changed.

    Code that computes calls, returns and spills: its stack pointer and the words above it change
    from look to look. A loop that waits for nothing leaves them as they are.
    """
    burning = [look for look in looks if look.boottime_ns >= (lead.burning_since_ns or 0)]
    burning = [look for look in burning if look.stack_digest][-16:]
    if len(burning) < _SPIN_SAMPLES:
        return False
    seen = [(look.user_sp, look.stack_digest) for look in burning]
    return max(seen.count(each) for each in set(seen)) >= _SPIN_SAME_SHARE * len(seen)


def _blocked(
    view: ProcessView, sample: ThreadSample, looks: Sequence[Inspection], scene: Scene
) -> _Judged:
    look = looks[-1] if looks else None
    family = scene.table.family(sample.syscall)
    if sample.syscall == NO_SYSCALL:
        return State.FAULTING, False, ()
    if family is Family.IOCTL:
        return State.DEVICE, False, ()
    if family is Family.FUTEX:
        return State.FUTEX, False, ()
    if family is Family.SLEEP:
        return _sleeping(look, scene), False, ()
    if family is Family.CHILD:
        return State.CHILD, False, tuple(child.pid for child in scene.children(view.pid))
    if look is not None and look.lock_holders:
        return State.LOCK, False, look.lock_holders
    on_files = _on_files(view, sample, family, looks, scene)
    if on_files is not None:
        return on_files
    if sample.state is TaskState.UNINTERRUPTIBLE or family is Family.FILE:
        return State.STORAGE, _storage_proven(looks, scene), ()
    return State.OTHER, False, ()


def _sleeping(look: Inspection | None, scene: Scene) -> State:
    if look is None or look.deadline_ns is None:
        return State.SLEEPING
    late = look.deadline_ns - scene.now_ns > SLEEP_CAP_S * NS
    return State.SLEEP_LONG if late else State.SLEEPING


_STREAM_KINDS = frozenset({"pipe", "fifo", "unix"})


def _on_files(
    view: ProcessView,
    sample: ThreadSample,
    family: Family,
    looks: Sequence[Inspection],
    scene: Scene,
) -> _Judged | None:
    look = looks[-1] if looks else None
    files = look.files if look is not None else ()
    kinds = {scene.kind(view.pid, each) for each in files}
    if "fifo" in kinds or (look is not None and look.wait_channel in _FIFO_CHANNELS):
        return State.READ, False, _holders(view, files, scene)
    if "file" in kinds and family in (Family.READ, Family.WRITE, Family.FILE):
        return State.STORAGE, _storage_proven(looks, scene), ()
    if "tcp" in kinds:
        return State.PEERS, False, _holders(view, files, scene)
    if "tty" in kinds or any(each.fd == 0 for each in files):
        return State.USER, False, ()
    if kinds & _STREAM_KINDS:
        holders = _holders(view, files, scene)
        offspring = [child.pid for child in scene.children(view.pid)]
        held = tuple(pid for pid in offspring if pid in holders)
        if held or (offspring and not holders):
            return State.CHILD, False, held or tuple(offspring)
        return State.READ, False, holders
    if family is Family.POLL and poll_timeout_ms(sample, scene.table) not in (None, 0):
        children = tuple(child.pid for child in scene.children(view.pid))
        return (State.CHILD, False, children) if children else (State.PEERS, False, ())
    if family in (Family.NETWORK, Family.POLL):
        return State.PEERS, False, ()
    return None


# fs/fifo: an open waits for its partner in this function
_FIFO_CHANNELS = frozenset({"wait_for_partner"})
# fs/fuse, net/sunrpc: waits that end only when a server answers
_SERVER_CHANNELS = ("request_wait_answer", "fuse_", "rpc_wait", "nfs", "ceph", "cl_sync", "ptlrpc")
# a writer held off by freeze_super()
_FREEZE_CHANNELS = ("percpu_rwsem", "sb_start_write", "__sb_start_write")
_SERVER_PATIENCE_NS = 6 * NS
_DEVICE_PATIENCE_NS = 8 * NS


def _storage_proven(looks: Sequence[Inspection], scene: Scene) -> bool:
    # slow storage ends by itself, so only what cannot end counts: a frozen file system, a suspended
    # device, a device that completed none of the requests in flight, a server that answered nothing
    if not looks:
        return False
    first, last = looks[0], looks[-1]
    span_ns = last.boottime_ns - first.boottime_ns
    if any(word in last.wait_channel for word in _FREEZE_CHANNELS):
        return span_ns >= 2 * NS
    if any(last.wait_channel.startswith(word) for word in _SERVER_CHANNELS):
        return span_ns >= _SERVER_PATIENCE_NS
    if last.storage is None or first.storage is None:
        return False
    if last.storage.suspended:
        return True
    stalled = last.storage.completed_count == first.storage.completed_count
    return stalled and last.storage.inflight_count > 0 and span_ns >= _DEVICE_PATIENCE_NS


def _holders(view: ProcessView, files: Sequence[WaitedFile], scene: Scene) -> tuple[Pid, ...]:
    found: set[Pid] = set()
    for each in files:
        found.update(scene.holders(view.pid, each))
    return tuple(sorted(found))


def _effort(view: ProcessView, state: State, scene: Scene) -> Effort | None:
    window = _EFFORT_WINDOW_NS
    if state is State.STORAGE:
        # one long call: its bytes are charged when it begins, so patience is given as a whole
        quiet = scene.now_ns - view.storage_moved_ns
        return Effort.STORAGE if view.storage_moved_ns and quiet <= 2 * window else None
    if state is State.SPINNING or state is State.COMPUTING:
        return None
    own = view.latest_effort(scene.now_ns, window)
    if own is not None:
        return own
    if state in (State.CHILD, State.FUTEX, State.PEERS, State.READ, State.OTHER):
        for child in scene.children(view.pid):
            if _works(child, scene):
                return Effort.CHILDREN
    return None


def _works(child: ProcessView, scene: Scene) -> bool:
    if child.latest_effort(scene.now_ns, _EFFORT_WINDOW_NS) is not None:
        return True
    lead = child.lead
    if lead is None:
        return scene.now_ns - child.first_seen_ns < _EFFORT_WINDOW_NS
    if lead.burning_since_ns is not None:
        looks = scene.inspections(child.pid, lead.sample.tid)
        return not spins_in_place(lead, looks)
    return lead.progress_ns > 0 and scene.now_ns - lead.progress_ns < _EFFORT_WINDOW_NS


def _since(lead: ThreadView, view: ProcessView) -> int:
    if lead.burning_since_ns is not None:
        return lead.burning_since_ns
    # a thread that only wakes to wait again left a CPU a moment ago, but has been at this site for
    # long; one that came back to the same site after real work has been there only since that work
    progress_ns = max(lead.progress_ns, view.peer_bytes_ns)
    return min(lead.sample.idle_since_ns, max(lead.sample.site_since_ns, progress_ns))


def describe(
    sample: ThreadSample, look: Inspection | None, table: SyscallTable, state: State | None = None
) -> str:
    """The call a thread sits in, for people: name, what it waits on, kernel function."""
    if sample.state in (TaskState.STOPPED, TaskState.FROZEN, TaskState.TRACED):
        return {"T": "stopped (SIGSTOP)", "F": "frozen (cgroup)", "t": "held by a debugger"}[
            sample.state.value
        ]
    name = table.name(sample.syscall)
    if not name:
        running = sample.state is TaskState.RUNNING
        name = "running in user space" if running else "page fault"
    parts = [name]
    if look is not None:
        if look.files:
            parts.append(f"fd {look.files[0].fd} {look.files[0].kind} {look.files[0].target}")
        if look.wait_channel:
            parts.append(f"[{look.wait_channel}]")
        if look.timed and look.deadline_ns is not None:
            parts.append(
                f"(ends in {max(0.0, (look.deadline_ns - sample.boottime_ns) / NS):.0f} s)"
            )
    if state is State.SPINNING:
        parts.append("(a loop in place)")
    if sample.state is TaskState.UNINTERRUPTIBLE:
        parts.append("(state D)")
    return " ".join(parts)
