"""What a blocked thread waits for, from its call, its files and the threads and processes around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcover_ebpf.facts import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.host_facts import Inspection, WaitedFile
from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents.processes import NS, ProcessView
from kcover_ebpf.incidents.standing import Scene, State
from kcover_ebpf.incidents.threads import poll_timeout_ms
from kcover_ebpf.syscalls import Family

SLEEP_CAP_S = 600.0
"""A timed wait that ends later than this is as good as endless for the ranks that wait for it."""
_STREAM_KINDS = frozenset({"pipe", "unix"})


class Wait(NamedTuple):
    """A judged wait."""

    state: State
    proven: bool = False
    waits_for: tuple[Pid, ...] = ()


def judge_wait(
    view: ProcessView, sample: ThreadSample, looks: Sequence[Inspection], scene: Scene
) -> Wait:
    """The wait of a lead thread that is blocked; `looks` are those made since it went on last."""
    look = looks[-1] if looks else None
    family = scene.table.family(sample.syscall)
    if sample.syscall == NO_SYSCALL:
        return Wait(State.FAULTING)
    if family is Family.IOCTL:
        return Wait(State.DEVICE)
    if family is Family.FUTEX:
        return Wait(State.HELPED if _is_helped(view, sample, scene) else State.FUTEX)
    if family is Family.SLEEP:
        return Wait(_sleeping(look, scene))
    if family is Family.CHILD:
        children = tuple(child.pid for child in scene.children(view.pid))
        return Wait(State.CHILD, waits_for=children)
    if look is not None and look.lock_holders:
        return Wait(State.LOCK, waits_for=look.lock_holders)
    on_files = _on_files(view, sample, family, looks, scene)
    if on_files is not None:
        return on_files
    if sample.state is TaskState.UNINTERRUPTIBLE or family in (Family.FILE, Family.ASYNC_IO):
        return Wait(State.STORAGE, _storage_proven(looks))
    if look is not None and look.wait_channel.startswith(_SERVER_CHANNELS):
        return Wait(State.STORAGE, _storage_proven(looks))
    return Wait(State.OTHER)


def _is_helped(view: ProcessView, sample: ThreadSample, scene: Scene) -> bool:
    # What may release the lead: another thread that entered storage after the lead began to wait,
    # or an answer from outside the job to what the process has sent there since.
    began_ns = sample.idle_since_ns - NS
    in_storage = any(
        other.sample.state is TaskState.UNINTERRUPTIBLE and other.sample.idle_since_ns >= began_ns
        for other in view.threads.values()
    )
    return in_storage or (scene.all_here and scene.ends.asked_outside_ns(view) >= began_ns)


def _sleeping(look: Inspection | None, scene: Scene) -> State:
    if look is None or look.deadline_ns is None:
        return State.SLEEPING
    endless = look.deadline_ns - scene.now_ns > SLEEP_CAP_S * NS
    return State.SLEEP_LONG if endless else State.SLEEPING


def _on_files(
    view: ProcessView,
    sample: ThreadSample,
    family: Family,
    looks: Sequence[Inspection],
    scene: Scene,
) -> Wait | None:
    look = looks[-1] if looks else None
    files = look.files if look is not None else ()
    kinds = {scene.kind(view.pid, each) for each in files}
    if "fifo" in kinds or (look is not None and look.wait_channel in _FIFO_CHANNELS):
        return Wait(State.READ, waits_for=_holders(view, files, scene))
    if "file" in kinds and family in (Family.READ, Family.WRITE, Family.FILE):
        return Wait(State.STORAGE, _storage_proven(looks))
    if "tcp" in kinds:
        peers = _holders(view, files, scene)
        outside = not peers and scene.all_here
        return Wait(State.OUTSIDE if outside else State.PEERS, waits_for=peers)
    if "tty" in kinds or any(each.fd == 0 for each in files):
        return Wait(State.USER)
    if kinds & _STREAM_KINDS:
        return _on_stream(view, files, scene)
    if family is Family.POLL:
        offspring = tuple(child.pid for child in scene.children(view.pid))
        timed = poll_timeout_ms(sample, scene.table) not in (None, 0)
        return Wait(State.CHILD, waits_for=offspring) if offspring and timed else Wait(State.PEERS)
    return Wait(State.PEERS) if family is Family.NETWORK else None


def _on_stream(view: ProcessView, files: Sequence[WaitedFile], scene: Scene) -> Wait:
    holders = _holders(view, files, scene)
    offspring = tuple(child.pid for child in scene.children(view.pid))
    own = tuple(pid for pid in offspring if pid in holders)
    if own or (offspring and not holders):
        return Wait(State.CHILD, waits_for=own or offspring)
    return Wait(State.READ, waits_for=holders)


def _holders(view: ProcessView, files: Sequence[WaitedFile], scene: Scene) -> tuple[Pid, ...]:
    found: set[Pid] = set()
    for each in files:
        found.update(scene.holders(view.pid, each))
    return tuple(sorted(found))


# fs/pipe.c: the open of a FIFO waits for its partner in this function
_FIFO_CHANNELS = frozenset({"wait_for_partner"})
# fs/fuse, net/sunrpc and others: waits that end only when a server answers
_SERVER_CHANNELS = ("request_wait_answer", "fuse_", "rpc_wait", "nfs", "ceph", "cl_sync", "ptlrpc")
# fs/super.c: a writer held off by freeze_super()
_FREEZE_CHANNELS = ("percpu_rwsem", "sb_start_write", "__sb_start_write")
_FREEZE_PATIENCE_NS = 2 * NS
_SERVER_PATIENCE_NS = 6 * NS
_DEVICE_PATIENCE_NS = 8 * NS


def _storage_proven(looks: Sequence[Inspection]) -> bool:
    # Slow storage ends by itself, so only what cannot end counts: a frozen file system, a suspended
    # device, a device that completed none of the requests in flight, a server that answered
    # nothing.
    if not looks:
        return False
    first, last = looks[0], looks[-1]
    span_ns = last.boottime_ns - first.boottime_ns
    if any(word in last.wait_channel for word in _FREEZE_CHANNELS):
        return span_ns >= _FREEZE_PATIENCE_NS
    if any(last.wait_channel.startswith(word) for word in _SERVER_CHANNELS):
        return span_ns >= _SERVER_PATIENCE_NS
    if last.storage is None or first.storage is None:
        return False
    if last.storage.suspended:
        return True
    stalled = last.storage.completed_count == first.storage.completed_count
    return stalled and last.storage.inflight_count > 0 and span_ns >= _DEVICE_PATIENCE_NS
