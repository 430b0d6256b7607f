"""A system call under way as a sentence and as a list of what it waits for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.output.formatting import span
from kcover_ebpf.trace.futex import Lock
from kcover_ebpf.trace.records import WaitTarget

_SHOWN = 4
_WAIT_ANY = -1
_NVIDIA_TYPE = ord("F")
_STOPPED = {"T": "stopped (SIGSTOP)", "t": "held by a debugger", "F": "frozen (cgroup)"}


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about one call."""

    lock: Lock | None = None
    files: tuple[WaitedFile, ...] = ()
    ends: Mapping[int, Sequence[WaitTarget]] = field(default_factory=dict)
    """Descriptor -> who is at the other end."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Thread or process -> its name."""
    children: Sequence[WaitTarget] = ()
    lock_holders: Sequence[WaitTarget] = ()
    """Of a file lock."""
    wait_channel: str = ""
    timed: bool = False
    ends_in_s: float | None = None


def decode(
    state: str, name: str, args: Sequence[int], known: Known
) -> tuple[str, tuple[WaitTarget, ...]]:
    """(the call for people, what it waits for); `name` is empty outside any call."""
    if state in _STOPPED:
        return _STOPPED[state], ()
    if not name:
        return ("running in user space" if state == "R" else "page fault"), ()
    text, targets = _subject(name, args, known)
    parts = [text]
    if known.wait_channel and not known.wait_channel.startswith(_PLAIN):
        parts.append(f"[{known.wait_channel}]")
    if known.timed:
        left = "" if known.ends_in_s is None else f"ends in {span(known.ends_in_s)}"
        parts.append(f"({left or 'timed, its end cannot be read'})")
    if state == "D":
        parts.append("(cannot be interrupted)")
    return " ".join(parts), targets


# kernel functions that say no more than the call itself
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


def _subject(name: str, args: Sequence[int], known: Known) -> tuple[str, tuple[WaitTarget, ...]]:
    if name.startswith("futex"):
        return _on_lock(name, args, known)
    if name in ("wait4", "waitid"):
        return _on_child(name, args, known)
    if name in ("flock", "fcntl") and known.lock_holders:
        holders = tuple(known.lock_holders)
        file = known.files[0].target if known.files else "?"
        return f"{name}: lock on {file}, owned by {_names(holders)}", holders
    if "sleep" in name:
        return name, (WaitTarget("timer", "a timer"),)
    if name == "ioctl":
        return _on_device(args, known)
    if known.files:
        return _on_files(name, known)
    return name, ()


def _on_lock(name: str, args: Sequence[int], known: Known) -> tuple[str, tuple[WaitTarget, ...]]:
    address = f"{args[0]:#x}"
    lock = known.lock
    if lock is None:
        return f"{name} {address}", (WaitTarget("lock", f"futex {address}", address=address),)
    sharing = "" if lock.private else ", shared between processes"
    holder = known.names.get(lock.holder or 0, "")
    if lock.kind == "thread":
        who = f"thread {lock.holder}" + (f" ({holder})" if holder else "")
        return f"joins {who}", (WaitTarget("thread", who, tid=lock.holder),)
    if lock.kind == "mutex":
        who = "a thread that has exited"
        if lock.holder is not None:
            who = f"thread {lock.holder}" + (f" ({holder})" if holder else "")
        text = f"mutex {address} held by {who}{sharing}"
        return f"futex: {text}", (WaitTarget("lock", text, tid=lock.holder, address=address),)
    kind = {"unknown": "word"}.get(lock.kind, lock.kind)
    text = f"{kind} {address}{sharing}"
    return f"futex: {text} (no owner recorded)", (WaitTarget("lock", text, address=address),)


def _on_child(name: str, args: Sequence[int], known: Known) -> tuple[str, tuple[WaitTarget, ...]]:
    wanted = _signed(args[0]) if name == "wait4" else _signed(args[1])
    children = tuple(each for each in known.children if wanted in (_WAIT_ANY, 0, each.pid))
    if not children:
        return f"{name}: for a child", ()
    return f"{name}: for {_names(children)}", children


def _on_device(args: Sequence[int], known: Known) -> tuple[str, tuple[WaitTarget, ...]]:
    file = known.files[0] if known.files else None
    path = "?" if file is None else file.target
    number = args[1] & 0xFFFFFFFF
    kind = (number >> 8) & 0xFF
    driver = " (NVIDIA driver)" if path.startswith("/dev/nvidia") and kind == _NVIDIA_TYPE else ""
    target = WaitTarget("device", path, fd=None if file is None else file.fd)
    return f"ioctl {number:#x} on {path}{driver}", (target,)


def _on_files(name: str, known: Known) -> tuple[str, tuple[WaitTarget, ...]]:
    targets = tuple(target for each in known.files for target in _ends_of(each, known))
    shown = [_file(each, known) for each in known.files[:_SHOWN]]
    more = len(known.files) - len(shown)
    if more > 0:
        shown.append(f"and {more} more")
    return f"{name} {', '.join(shown)}", targets


def _ends_of(file: WaitedFile, known: Known) -> Sequence[WaitTarget]:
    ends = known.ends.get(file.fd)
    if ends:
        return ends
    kind = {"fifo": "pipe", "tty": "user", "null": "file", "other": "file"}.get(
        file.kind, file.kind
    )
    return (WaitTarget(kind, file.target, fd=file.fd),)


def _file(file: WaitedFile, known: Known) -> str:
    where = f"fd {file.fd} " if file.fd >= 0 else ""
    ends = known.ends.get(file.fd, ())
    if ends:
        return f"{where}{ends[0].kind} with {_names(ends)}"
    if file.kind == "file":
        return f"{where}{file.target}" + (f" ({file.fs_type})" if file.fs_type else "")
    name = "" if file.target.startswith(f"{file.kind}:") else f" {file.target}"
    return f"{where}{file.kind}{name}"


def _names(targets: Sequence[WaitTarget]) -> str:
    shown = [each.text for each in targets[:_SHOWN]]
    more = len(targets) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _signed(value: int) -> int:
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low & 0x80000000 else low
