"""The system call that a thread waits in, from /proc: arguments, files, and the end of its time-out.

It reads the memory of the examined process, which can block while that process's memory lock is taken. Callers use
a worker (thread or process) that they can abandon.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import ThreadReading, WaitedFile
from kcover_ebpf.facts.kernel import NO_SYSCALL
from kcover_ebpf.facts.syscalls import FIRST_ARGUMENT_IS_FD, SyscallTable
from kcover_ebpf.host import proc_text, stack_words
from kcover_ebpf.host.bounded import read_text
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.ids import NS, Inode, Pid, Tid

_POLL_FDS = 64
_SELECT_FDS = 1024
_TIMESPEC_AT = {"nanosleep": 0, "ppoll": 2, "epoll_pwait2": 3, "pselect6": 4}
"""Index of the argument that points to the length of the wait; calls that wait forever pass a null
pointer."""
_FUTEX_COMMAND = 0x7F
_FUTEX_WAIT_BITSET = 9
_FUTEX_CLOCK_REALTIME = 256
_TIMER_ABSTIME = 1
_FOREVER_S = 1 << 40
_FILE_LOCKS = ("flock", "fcntl")


_CURRENT_FOLDER = 0xFFFFFF9C
"""AT_FDCWD as the unsigned 32-bit number that /proc shows."""
_PATH_AT = {
    **dict.fromkeys(("open", "creat", "stat", "lstat", "access", "readlink", "statfs", "chdir"), 0),
    **dict.fromkeys(("truncate", "rename", "mkdir", "unlink", "rmdir", "chmod", "execve"), 0),
    **dict.fromkeys(("getxattr", "lgetxattr"), 0),
    **dict.fromkeys(("openat", "openat2", "newfstatat", "statx", "faccessat", "faccessat2"), 1),
    **dict.fromkeys(("readlinkat", "mkdirat", "unlinkat", "renameat", "renameat2"), 1),
    **dict.fromkeys(("fchmodat", "utimensat"), 1),
}
"""Index of the argument that points to a path; calls with 1 resolve it from the folder in their
first argument."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call in progress: number and arguments as /proc shows them."""

    name: str
    args: tuple[int, ...]
    sp: int
    """User stack pointer of the thread during the call."""


def read_wait(pid: Pid, tid: Tid, call: Call | None, since_ns: int) -> ThreadReading:
    """What `call`, in progress since `since_ns` (boottime), waits for; if it is None, only the kernel function."""
    channel = read_text(f"/proc/{pid}/task/{tid}/wchan").strip()
    timed, deadline_ns = (False, None) if call is None else deadline(pid, call, since_ns)
    waited = () if call is None else files(pid, call)
    if not timed:
        timed, deadline_ns = _timer(pid, waited)
    return ThreadReading(
        boottime_ns=boottime_ns(),
        pid=pid,
        tid=tid,
        wait_channel="" if channel == "0" else channel,
        files=waited,
        timed=timed,
        deadline_ns=deadline_ns,
        lock_holders=_lock_holders(pid) if call and call.name in _FILE_LOCKS else (),
    )


def read_call(pid: Pid, tid: Tid, table: SyscallTable, known: int = NO_SYSCALL) -> Call | None:
    """The call of a thread; None while it runs, or if it cannot be read.

    `known`: the call in which it was last seen, if it has not moved since. A wait that was interrupted by a stop
    continues under another number, with the same arguments.
    """
    line = proc_text.parse_syscall(read_text(f"/proc/{pid}/task/{tid}/syscall"))
    if line is None:
        return None
    name = table.name(line.number)
    if name == "restart_syscall" and known != NO_SYSCALL:
        name = table.name(known)
    return Call(name, line.args, line.sp)


def deadline(pid: Pid, call: Call, since_ns: int) -> tuple[bool, int | None]:
    """(whether the wait has a time-out, boottime of its end or None if unreadable); `since_ns`: when the wait began."""
    args = call.args
    match call.name:
        case "futex" if args[3]:
            absolute = args[1] & _FUTEX_COMMAND == _FUTEX_WAIT_BITSET
            clock = time.CLOCK_REALTIME if args[1] & _FUTEX_CLOCK_REALTIME else time.CLOCK_MONOTONIC
            return True, _timespec(pid, since_ns, args[3], clock if absolute else None)
        case "futex_waitv" if args[3]:
            return True, _timespec(pid, since_ns, args[3], time.CLOCK_MONOTONIC)
        case "clock_nanosleep":
            return True, _timespec(
                pid, since_ns, args[2], args[0] if args[1] & _TIMER_ABSTIME else None
            )
        case "nanosleep" | "ppoll" | "epoll_pwait2" | "pselect6" if args[_TIMESPEC_AT[call.name]]:
            return True, _timespec(pid, since_ns, args[_TIMESPEC_AT[call.name]], None)
        case "select" if args[4]:
            return True, _timespec(pid, since_ns, args[4], None, unit_ns=1000)
        case "poll":
            return _milliseconds(since_ns, args[2])
        case "epoll_wait" | "epoll_pwait":
            return _milliseconds(since_ns, args[3])
        case _:
            return False, None


def _timer(pid: Pid, waited: tuple[WaitedFile, ...]) -> tuple[bool, int | None]:
    """As `deadline`, for the timers among the files that it waits on; fdinfo shows the time left (fs/timerfd.c)."""
    left_ns = [
        left
        for file in waited
        if file.kind == "timerfd"
        and (left := proc_text.timer_left_ns(read_text(f"/proc/{pid}/fdinfo/{file.fd}")))
    ]
    return (True, boottime_ns() + min(left_ns)) if left_ns else (False, None)


def _milliseconds(since_ns: int, raw: int) -> tuple[bool, int | None]:
    value = raw & 0xFFFFFFFF
    if value & 0x80000000:
        return False, None
    return True, since_ns + value * 1_000_000


def _timespec(
    pid: Pid, since_ns: int, address: int, clock: int | None, unit_ns: int = 1
) -> int | None:
    """Boottime of a time-out at `address`: absolute on `clock`, or if that is None relative to the start of the wait.

    `unit_ns`: unit of the fraction of a second; 1000 for a timeval.
    """
    raw = stack_words.read_memory(pid, address, 16)
    if len(raw) < 16:
        return None
    seconds, fraction = struct.unpack("=qq", raw)
    if not 0 <= seconds < _FOREVER_S or not 0 <= fraction * unit_ns < NS:
        return None
    value_ns: int = seconds * NS + fraction * unit_ns
    if clock is None:
        return since_ns + value_ns
    if clock not in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME):
        return None
    return boottime_ns() + value_ns - time.clock_gettime_ns(clock)


def files(pid: Pid, call: Call) -> tuple[WaitedFile, ...]:
    """The files that the call waits on: its descriptor, those that poll or epoll watches, or the path that it opens."""
    if call.name == "io_uring_enter":
        return _polled_by_ring(pid, call.args[0] & 0xFFFFFFFF)
    if call.name in FIRST_ARGUMENT_IS_FD:
        fd = call.args[0] & 0xFFFFFFFF
        if call.name.startswith("epoll"):
            return tuple(_file(pid, number) for number in _watched_by(pid, fd))
        return (_file(pid, fd),)
    if call.name in ("poll", "ppoll"):
        count = min(call.args[1], _POLL_FDS)
        raw = stack_words.read_memory(pid, call.args[0], 8 * count)
        fds = [fd for fd, _, _ in struct.iter_unpack("=ihh", raw[: len(raw) // 8 * 8]) if fd >= 0]
        return tuple(_file(pid, fd) for fd in fds)
    if call.name in ("select", "pselect6"):
        return tuple(_file(pid, fd) for fd in _selected(pid, call.args))
    at = _PATH_AT.get(call.name)
    return () if at is None else _named(pid, call, at)


def _named(pid: Pid, call: Call, at: int) -> tuple[WaitedFile, ...]:
    """The file in argument `at` of a call, or the folder from which it is resolved."""
    raw = stack_words.read_memory(pid, call.args[at], 256)
    path = raw.split(b"\0")[0].decode("utf-8", "replace")
    folder = call.args[0] & 0xFFFFFFFF
    if at > 0 and not path.startswith("/") and folder != _CURRENT_FOLDER:
        return (_file(pid, folder),)
    return (WaitedFile(-1, "file", path[:120], Inode(0), "", ""),) if path else ()


def _selected(pid: Pid, args: tuple[int, ...]) -> list[int]:
    """Descriptors in the three sets of a select, which are bit masks (sys/select.h)."""
    count = min(args[0] & 0xFFFFFFFF, _SELECT_FDS)
    found: set[int] = set()
    for address in args[1:4]:
        raw = stack_words.read_memory(pid, address, (count + 63) // 64 * 8) if address else b""
        bits = int.from_bytes(raw, sys.byteorder)
        found.update(fd for fd in range(count) if bits >> fd & 1)
    return sorted(found)[:_POLL_FDS]


def _watched_by(pid: Pid, epoll_fd: int) -> list[int]:
    lines = read_text(f"/proc/{pid}/fdinfo/{epoll_fd}").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")][:_POLL_FDS]


def _polled_by_ring(pid: Pid, ring_fd: int) -> tuple[WaitedFile, ...]:
    """The ring itself, if one of its requests polls a pipe or socket: io_uring/fdinfo.c does not list which."""
    _, found, rest = read_text(f"/proc/{pid}/fdinfo/{ring_fd}").partition("PollList:\n")
    if not found or not rest.lstrip().startswith("op="):
        return ()
    return (WaitedFile(ring_fd, "stream", "anon_inode:[io_uring]", Inode(0), "", ""),)


def _file(pid: Pid, fd: int) -> WaitedFile:
    try:
        target = str(Path(f"/proc/{pid}/fd/{fd}").readlink())
    except OSError:
        return WaitedFile(fd, "other", "?", Inode(0), "", "")
    kind, inode = kind_of(target)
    if kind == "socket":
        # TCP sockets are sampled, so their state is known from that
        protocol = _protocol(pid, fd)
        kind = "udp" if protocol.startswith("UDP") else kind
        kind = "unix" if protocol.startswith("UNIX") else kind
    if kind == "pidfd":
        awaited = proc_text.pidfd_process(read_text(f"/proc/{pid}/fdinfo/{fd}"))
        return WaitedFile(fd, kind, target[:120], inode, "", "", awaited)
    device, fs_type = _mount_of(pid, fd) if kind == "file" else ("", "")
    return WaitedFile(fd, kind, target[:120], inode, device, fs_type)


def _protocol(pid: Pid, fd: int) -> str:
    """Protocol of a socket by net/socket.c (TCP, UDPv6, UNIX-STREAM, ...); empty if it cannot be read."""
    try:
        return os.getxattr(f"/proc/{pid}/fd/{fd}", "system.sockprotoname").rstrip(b"\0").decode()
    except (OSError, UnicodeDecodeError):
        return ""


def kind_of(target: str) -> tuple[str, Inode]:
    """(kind, inode) from the link of a descriptor.

    The target is never accessed: a stat of a file on a hanging mount would hang us too.
    """
    prefix, _, rest = target.partition(":[")
    number = rest.removesuffix("]")
    # a path may have such a name too
    if number != rest and number.isascii() and number.isdecimal() and not target.startswith("/"):
        return prefix, Inode(int(number))
    if target.startswith("anon_inode:"):
        return target.removeprefix("anon_inode:").strip("[]"), Inode(0)
    if target == "/dev/null":
        return "null", Inode(0)
    if target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return "tty", Inode(0)
    if target.startswith("/dev/") and not target.startswith("/dev/shm/"):
        return "device", Inode(0)
    return "file", Inode(0)


def _mount_of(pid: Pid, fd: int) -> tuple[str, str]:
    """(MAJOR:MINOR, type) of the file system of a descriptor."""
    info = read_text(f"/proc/{pid}/fdinfo/{fd}").split("\n")
    mount = next((line.split()[1] for line in info if line.startswith("mnt_id:")), None)
    for mount_line in proc_text.mountinfo(read_text(f"/proc/{pid}/mountinfo")):
        if mount_line.id == mount:
            return mount_line.device, mount_line.kind
    return "", ""


def _lock_holders(pid: Pid) -> tuple[Pid, ...]:
    """Processes that own the lock for which `pid` waits (kernel: /proc/locks, "->" marks a waiter)."""
    return parse_locks(read_text("/proc/locks"), pid)


def parse_locks(text: str, waiter: Pid) -> tuple[Pid, ...]:
    """The owners of the lock, from the text of /proc/locks; empty if `waiter` waits for none."""
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
