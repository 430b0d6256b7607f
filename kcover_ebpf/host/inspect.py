"""A closer look at one thread that does not move: what it waits for, until when, where in its code.

Reading the memory of a process can block for as long as that process holds its own memory lock,
which a thread stuck in a page fault may do for ever. So every look runs in a worker thread, and the
caller takes what is there.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from kcover_ebpf.facts import Inode, Inspection, Look, Pid, StorageState, WaitedFile
from kcover_ebpf.host import stack
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.syscalls import FIRST_ARGUMENT_IS_FD, SyscallTable

_WORKERS = 3
_POLL_FDS = 64
_FUTEX_COMMAND = 0x7F
_FUTEX_WAIT_BITSET = 9
_FUTEX_CLOCK_REALTIME = 256
_TIMER_ABSTIME = 1
_FOREVER_S = 1 << 40


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    args: tuple[int, ...]
    sp: int


class Inspector:
    """Looks at threads in the background; `machine` is what `os.uname().machine` says."""

    def __init__(self, machine: str) -> None:
        self._table = SyscallTable(machine)
        self._memory = stack.Memory()
        self._asked: SimpleQueue[Look] = SimpleQueue()
        self._seen: SimpleQueue[Inspection | None] = SimpleQueue()
        self._pending = 0
        self._workers: list[threading.Thread] = []

    def look(self, looks: Sequence[Look], timeout_s: float = 0.1) -> list[Inspection]:
        """Ask for looks and take all that are ready, waiting at most `timeout_s` for the new ones."""
        if self._pending < 4 * _WORKERS:
            for each in looks:
                self._asked.put(each)
                self._pending += 1
        if looks and not self._workers:
            self._start()
        done: list[Inspection] = []
        deadline_s = time.monotonic() + timeout_s
        while self._pending:
            try:
                found = self._seen.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except Empty:
                break
            self._pending -= 1
            if found is not None:
                done.append(found)
        return done

    @property
    def blocked(self) -> bool:
        """True while looks are under way that did not come back in time."""
        return self._pending > 0

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered about a process that ended or became another program."""
        self._memory.forget(pid)

    def _start(self) -> None:
        for _ in range(_WORKERS):
            worker = threading.Thread(target=self._work, name="kcover-inspect", daemon=True)
            worker.start()
            self._workers.append(worker)

    def _work(self) -> None:
        while True:
            look = self._asked.get()
            try:
                self._seen.put(self._inspect(look))
            except (OSError, ValueError):
                self._seen.put(None)

    def _inspect(self, look: Look) -> Inspection:
        call = self._call(look)
        timed, deadline_ns = (False, None) if call is None else _deadline(look, call)
        files = () if call is None else _files(look, call)
        return Inspection(
            boottime_ns=boottime_ns(),
            pid=look.pid,
            tid=look.tid,
            wait_channel=_wait_channel(look),
            deadline_ns=deadline_ns,
            timed=timed,
            files=files,
            stack=() if call is None else self._memory.words(look.pid, call.sp),
            storage=next((state for each in files if (state := _storage(each.device))), None),
            lock_holders=_lock_holders(look.pid)
            if call and call.name in ("flock", "fcntl")
            else (),
        )

    def _call(self, look: Look) -> _Call | None:
        text = _text(f"/proc/{look.pid}/task/{look.tid}/syscall").split()
        if len(text) < 3:
            return None
        number = int(text[0])
        args = tuple(int(each, 16) for each in text[1:-2])
        return _Call(self._table.name(number), args, int(text[-2], 16))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _wait_channel(look: Look) -> str:
    text = _text(f"/proc/{look.pid}/task/{look.tid}/wchan").strip()
    return "" if text == "0" else text


def _deadline(look: Look, call: _Call) -> tuple[bool, int | None]:
    """(the wait is timed, boottime of its end or None if unreadable)."""
    args = call.args
    match call.name:
        case "futex" if args[3]:
            absolute = args[1] & _FUTEX_COMMAND == _FUTEX_WAIT_BITSET
            clock = time.CLOCK_REALTIME if args[1] & _FUTEX_CLOCK_REALTIME else time.CLOCK_MONOTONIC
            return True, _timespec(look, args[3], clock if absolute else None)
        case "futex_waitv" if args[3]:
            return True, _timespec(look, args[3], time.CLOCK_MONOTONIC)
        case "clock_nanosleep":
            return True, _timespec(look, args[2], args[0] if args[1] & _TIMER_ABSTIME else None)
        case "nanosleep":
            return True, _timespec(look, args[0], None)
        case "ppoll" if args[2]:
            return True, _timespec(look, args[2], None)
        case "pselect6" if args[4]:
            return True, _timespec(look, args[4], None)
        case "poll":
            return _milliseconds(look, args[2])
        case "epoll_wait" | "epoll_pwait":
            return _milliseconds(look, args[3])
        case _:
            return False, None


def _milliseconds(look: Look, raw: int) -> tuple[bool, int | None]:
    value = raw & 0xFFFFFFFF
    if value & 0x80000000:
        return False, None
    return True, look.since_ns + value * 1_000_000


def _timespec(look: Look, address: int, clock: int | None) -> int | None:
    """Boottime of a time-out at `address`: absolute on `clock`, or relative to the start of the wait if None."""
    raw = stack.read_memory(look.pid, address, 16)
    if len(raw) < 16:
        return None
    seconds, nanoseconds = struct.unpack("=qq", raw)
    if not 0 <= seconds < _FOREVER_S or not 0 <= nanoseconds < 1_000_000_000:
        return None
    value_ns: int = seconds * 1_000_000_000 + nanoseconds
    if clock is None:
        return look.since_ns + value_ns
    if clock not in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME):
        return None
    return boottime_ns() + value_ns - time.clock_gettime_ns(clock)


def _files(look: Look, call: _Call) -> tuple[WaitedFile, ...]:
    if call.name in FIRST_ARGUMENT_IS_FD:
        fd = call.args[0] & 0xFFFFFFFF
        if call.name.startswith("epoll"):
            return tuple(_file(look.pid, each) for each in _watched_by(look.pid, fd))
        return (_file(look.pid, fd),)
    if call.name in ("poll", "ppoll"):
        count = min(call.args[1], _POLL_FDS)
        raw = stack.read_memory(look.pid, call.args[0], 8 * count)
        fds = [fd for fd, _, _ in struct.iter_unpack("=ihh", raw[: len(raw) // 8 * 8]) if fd >= 0]
        return tuple(_file(look.pid, fd) for fd in fds)
    if call.name in ("open", "openat", "openat2"):
        address = call.args[0 if call.name == "open" else 1]
        raw = stack.read_memory(look.pid, address, 256)
        path = raw.split(b"\0")[0].decode("utf-8", "replace")
        return (WaitedFile(-1, "file", path[:120], Inode(0), "", ""),) if path else ()
    return ()


def _watched_by(pid: Pid, epoll_fd: int) -> list[int]:
    lines = _text(f"/proc/{pid}/fdinfo/{epoll_fd}").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")][:_POLL_FDS]


def _file(pid: Pid, fd: int) -> WaitedFile:
    try:
        target = str(Path(f"/proc/{pid}/fd/{fd}").readlink())
    except OSError:
        return WaitedFile(fd, "other", "?", Inode(0), "", "")
    kind, inode = _kind(target)
    device, fs_type = _mount(pid, fd) if kind == "file" else ("", "")
    return WaitedFile(fd, kind, target[:120], inode, device, fs_type)


def _kind(target: str) -> tuple[str, Inode]:
    # the target itself is never touched: a stat of a file on a hung mount would hang us as well
    prefix, _, rest = target.partition(":[")
    if rest.endswith("]") and rest[:-1].isdigit():
        return prefix, Inode(int(rest[:-1]))
    if target.startswith("anon_inode:"):
        return target.removeprefix("anon_inode:").strip("[]"), Inode(0)
    if target == "/dev/null":
        return "null", Inode(0)
    if target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return "tty", Inode(0)
    if target.startswith("/dev/") and not target.startswith("/dev/shm/"):
        return "device", Inode(0)
    return "file", Inode(0)


def _mount(pid: Pid, fd: int) -> tuple[str, str]:
    """(MAJOR:MINOR, type) of the file system a descriptor is on."""
    info = _text(f"/proc/{pid}/fdinfo/{fd}").splitlines()
    mount = next((line.split()[1] for line in info if line.startswith("mnt_id:")), None)
    for line in _text(f"/proc/{pid}/mountinfo").splitlines():
        part = line.split()
        if part[0] == mount and "-" in part:
            return part[2], part[part.index("-") + 1]
    return "", ""


def _storage(device: str) -> StorageState | None:
    """Counters of a block device (kernel: Documentation/block/stat.rst); None if it is none."""
    stat = _text(f"/sys/dev/block/{device}/stat").split() if device else []
    if len(stat) < 9:
        return None
    suspended = _text(f"/sys/dev/block/{device}/dm/suspended").strip() == "1"
    return StorageState(device, int(stat[8]), int(stat[0]) + int(stat[4]), suspended)


def _lock_holders(pid: Pid) -> tuple[Pid, ...]:
    """Processes that hold the lock `pid` waits for (kernel: /proc/locks, "->" marks a waiter)."""
    return parse_locks(_text("/proc/locks"), pid)


def parse_locks(text: str, waiter: Pid) -> tuple[Pid, ...]:
    """Holders, from the text of /proc/locks; empty if `waiter` waits for no lock."""
    holders: dict[str, Pid] = {}
    for line in text.splitlines():
        part = line.replace("->", " -> ").split()
        if len(part) < 6:
            continue
        waits = part[1] == "->"
        pid = part[5] if waits else part[4]
        if not pid.removeprefix("-").isdecimal():
            continue
        if not waits:
            holders[part[0]] = Pid(int(pid))
        elif int(pid) == waiter and part[0] in holders:
            return (holders[part[0]],)
    return ()
