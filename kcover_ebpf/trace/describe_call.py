"""Describes what a thread does, with facts that only a trace finds out: other ends of files, owners of locks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.waits.call_text import STOPPED, interruptible, outside_calls
from kcover_ebpf.facts.futex import Lock
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import TaskState

_SHOWN = 4
_WAIT_ANY = -1
_NVIDIA_TYPE = ord("F")


@dataclass(frozen=True, slots=True)
class WaitTarget:
    """What a thread waits for, as far as it can be determined."""

    kind: str
    """One of lock, thread, socket, pipe, unix, file, device, child, timer, event, user."""
    text: str
    """Description of the target as part of a sentence."""
    pid: int | None = None
    """The process that could end the wait; None if there is none, or it is unknown."""
    tid: int | None = None
    rank: int | None = None
    fd: int | None = None
    address: str | None = None
    """Of a lock: address of its word in memory; of a socket: the remote end."""


@dataclass(frozen=True, slots=True)
class CallDetails:
    """What a trace found out about one call."""

    lock: Lock | None = None
    files: tuple[WaitedFile, ...] = ()
    ends: Mapping[int, Sequence[WaitTarget]] = field(default_factory=dict)
    """Descriptor -> processes at the other end."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Thread or process id -> its name."""
    children: Sequence[WaitTarget] = ()
    lock_holders: Sequence[WaitTarget] = ()
    """Owners of a file lock."""
    wait_channel: str = ""
    timed: bool = False
    left: str = ""
    """Remaining time of a timed wait, as text; empty if it cannot be read."""


def in_detail(
    state: TaskState, name: str, args: Sequence[int], known_details: CallDetails
) -> tuple[str, tuple[WaitTarget, ...]]:
    """(the call and all that it waits for as text, the same as a list); `name` is empty outside any call."""
    if state in STOPPED:
        return STOPPED[state], ()
    if not name:
        return outside_calls(state), ()
    text, targets = _subject(name, args, known_details)
    parts = [text]
    if known_details.wait_channel and not known_details.wait_channel.startswith(_PLAIN):
        parts.append(f"[{known_details.wait_channel}]")
    if known_details.timed:
        left = (
            f"ends in {known_details.left}"
            if known_details.left
            else "timed, its end cannot be read"
        )
        parts.append(f"({left})")
    return " ".join(parts) + interruptible(state), targets


# kernel functions that add nothing to the call itself
_PLAIN = (
    "futex_",
    "do_poll",
    "poll_schedule",
    "ep_poll",
    "do_epoll",
    "hrtimer_",
    "do_nanosleep",
    "do_wait",
)


def _subject(
    name: str, args: Sequence[int], known_details: CallDetails
) -> tuple[str, tuple[WaitTarget, ...]]:
    if name.startswith("futex"):
        return _on_lock(name, args, known_details)
    if name in ("wait4", "waitid"):
        return _on_child(name, args, known_details)
    if name in ("flock", "fcntl") and known_details.lock_holders:
        holders = tuple(known_details.lock_holders)
        file = known_details.files[0].target if known_details.files else "?"
        return f"{name}: lock on {file}, owned by {_names(holders)}", holders
    if "sleep" in name:
        return name, (WaitTarget("timer", "a timer"),)
    if name == "ioctl":
        return _on_device(args, known_details)
    if known_details.files:
        return _on_files(name, known_details)
    return name, ()


def _on_lock(
    name: str, args: Sequence[int], known_details: CallDetails
) -> tuple[str, tuple[WaitTarget, ...]]:
    address = f"{args[0]:#x}"
    lock = known_details.lock
    if lock is None:
        return f"{name} {address}", (WaitTarget("lock", f"futex {address}", address=address),)
    sharing = "" if lock.private else ", shared between processes"
    holder = known_details.names.get(lock.holder or 0, "")
    if lock.kind == "thread":
        who = f"thread {lock.holder}" + (f" ({holder})" if holder else "")
        return f"joins {who}", (WaitTarget("thread", who, tid=lock.holder),)
    if lock.kind == "mutex":
        who = "a thread that has exited"
        if lock.holder is not None:
            who = f"thread {lock.holder}" + (f" ({holder})" if holder else "")
        text = f"mutex {address} owned by {who}{sharing}"
        return f"futex: {text}", (WaitTarget("lock", text, tid=lock.holder, address=address),)
    kind = {"unknown": "word"}.get(lock.kind, lock.kind)
    text = f"{kind} {address}{sharing}"
    return f"futex: {text} (no owner recorded)", (WaitTarget("lock", text, address=address),)


def _on_child(
    name: str, args: Sequence[int], known_details: CallDetails
) -> tuple[str, tuple[WaitTarget, ...]]:
    wanted = _signed(args[0]) if name == "wait4" else _signed(args[1])
    children = tuple(
        child for child in known_details.children if wanted in (_WAIT_ANY, 0, child.pid)
    )
    if not children:
        return f"{name}: for a child", ()
    return f"{name}: for {_names(children)}", children


def _on_device(
    args: Sequence[int], known_details: CallDetails
) -> tuple[str, tuple[WaitTarget, ...]]:
    file = known_details.files[0] if known_details.files else None
    path = "?" if file is None else file.target
    number = args[1] & 0xFFFFFFFF
    kind = (number >> 8) & 0xFF
    driver = " (NVIDIA driver)" if path.startswith("/dev/nvidia") and kind == _NVIDIA_TYPE else ""
    target = WaitTarget("device", path, fd=None if file is None else file.fd)
    return f"ioctl {number:#x} on {path}{driver}", (target,)


def _on_files(name: str, known_details: CallDetails) -> tuple[str, tuple[WaitTarget, ...]]:
    targets = tuple(
        target for file in known_details.files for target in _ends_of(file, known_details)
    )
    shown = [_file(file, known_details) for file in known_details.files[:_SHOWN]]
    more = len(known_details.files) - len(shown)
    if more > 0:
        shown.append(f"and {more} more")
    return f"{name} {', '.join(shown)}", targets


_TARGET_KINDS = {"fifo": "pipe", "tty": "user", "null": "file", "other": "file", "udp": "socket"}


def _ends_of(file: WaitedFile, known_details: CallDetails) -> Sequence[WaitTarget]:
    ends = known_details.ends.get(file.fd)
    if ends:
        return ends
    kind = _TARGET_KINDS.get(file.kind, file.kind)
    return (WaitTarget(kind, file.target, fd=file.fd),)


def _file(file: WaitedFile, known_details: CallDetails) -> str:
    where = f"fd {file.fd} " if file.fd >= 0 else ""
    ends = known_details.ends.get(file.fd, ())
    if ends:
        return f"{where}{ends[0].kind} with {_names(ends)}"
    if file.kind == "file":
        return f"{where}{file.target}" + (f" ({file.fs_type})" if file.fs_type else "")
    name = "" if file.target.startswith(f"{file.kind}:") else f" {file.target}"
    return f"{where}{file.kind}{name}"


def _names(targets: Sequence[WaitTarget]) -> str:
    shown = [target.text for target in targets[:_SHOWN]]
    more = len(targets) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _signed(value: int) -> int:
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low & 0x80000000 else low
