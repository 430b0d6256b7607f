"""Reads processes and clocks of this host from /proc. Changes nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.host import bounded, over_bounds
from kcover_ebpf.host.proc_text import split_stat, status_numbers, status_words
from kcover_ebpf.ids import NS, Pid, Tid

PROC = Path("/proc")
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)
_TICK_NS = NS // os.sysconf("SC_CLK_TCK")
_WORDS = 16
_ENVIRON_BYTES = 256 * 1024
_VALUE_LENGTH = 200
_VALUE_BYTES = 4 * _VALUE_LENGTH
"""A UTF-8 character has at most four bytes."""


def boottime_ns() -> int:
    """Current time on CLOCK_BOOTTIME, the clock of all facts."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def unix_offset_s() -> float:
    """Seconds to add to a boottime to get unix time, as of now."""
    return time.time() - boottime_ns() / NS


def every_process() -> list[Pid]:
    """All processes of this pid namespace, in ascending order."""
    with os.scandir(PROC) as entries:
        return [Pid(int(entry.name)) for entry in entries if entry.name.isdecimal()]


def read_process(pid: Pid, variables: Collection[str]) -> ProcessSeen | None:
    """The identity of a process, with those of `variables` that its environment sets.

    None if it no longer exists or has no command line: then it is a zombie or is executing a program, and may be
    read again.
    """
    folder = PROC / str(pid)
    try:
        stat = bounded.read_bytes(folder / "stat").decode("utf-8", "replace")
        argv = _read(folder / "cmdline", 8192)
        environ = _read(folder / "environ", _ENVIRON_BYTES)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        environ = b""
    if not argv:
        return None
    comm, ppid, start_ns = parse_stat(stat)
    words = argv.split(b"\0")[: _WORDS + 1]
    numbers = namespace_numbers(pid)
    return ProcessSeen(
        boottime_ns=boottime_ns(),
        pid=pid,
        ppid=ppid,
        comm=comm,
        argv=tuple(word.decode("utf-8", "replace") for word in words if word)[:_WORDS],
        rank_environ=parse_environ(environ, variables),
        start_ns=start_ns,
        pid_inside=numbers[-1] if numbers else 0,
    )


_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel/", "/dev/infiniband/uverbs")
_MOST_FILES = 16384
"""Most descriptors read of one process, at some 2 us each. The kernel lists them by number, and
devices are opened early."""
_MOST_DEVICES, _MOST_NAME = 256, 256
"""Most devices of one process, and most characters of a name: a container can give any file such a name."""


def open_among(pid: Pid, paths: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Those of `paths` that a process has open among its first descriptors; empty if these cannot be read."""
    try:
        found, _ = bounded.links(proc / str(pid) / "fd", _MOST_FILES)
    except OSError:
        return frozenset()
    return frozenset(text for text in found if text in paths)


def open_devices(pid: Pid) -> frozenset[str] | None:
    """Paths of GPU, accelerator and RDMA devices that a process has open, as it named them.

    None if unknown: the process no longer exists, or it has more descriptors than are read and none of those is a
    device.
    """
    try:
        links, is_cut = bounded.links(PROC / str(pid) / "fd", _MOST_FILES)
    except OSError:
        return None
    found: set[str] = set()
    for link in links:
        if link.startswith(_DEVICES) and len(found) < _MOST_DEVICES:
            found.add(link[:_MOST_NAME])
    if is_cut:
        over_bounds.count("descriptors", pid)
    return None if is_cut and not found else frozenset(found)


def start_ns(pid: Pid) -> int | None:
    """Boottime at which a process started, early by at most a tick (10 ms); None for a zombie or if there is none.

    Reads a file that takes no lock of the process's memory, so it never blocks.
    """
    text = bounded.read_text(PROC / str(pid) / "stat")
    if not text:
        return None
    # other threads may outlive a zombie leader; then the sampler sees them
    return None if split_stat(text)[1][0] in "ZX" else parse_stat(text)[2]


def parse_stat(text: str) -> tuple[str, Pid, int]:
    """(name, parent, start in boottime ns) of a /proc/PID/stat line; the name may contain anything, also ")"."""
    comm, words = split_stat(text)
    return comm, Pid(int(words[1])), int(words[19]) * _TICK_NS


def comm(pid: int, proc: Path = PROC) -> str:
    """Name of a process; empty if unreadable. It may contain line separators."""
    try:
        raw = bounded.read_bytes(proc / str(pid) / "comm")
    except OSError:
        return ""
    return raw.removesuffix(b"\n").decode(errors="replace")


def boot_id() -> str:
    """Random id of this boot (proc_sys_kernel(5)); raises `OSError`."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def task_state(pid: int, tid: int | None = None) -> str:
    """State letter of a process's first thread, or of another of its threads; empty if it no longer exists."""
    task = f"{pid}" if tid is None else f"{pid}/task/{tid}"
    text = bounded.read_text(PROC / task / "stat")
    return split_stat(text)[1][0] if text else ""


def is_dying(pid: Pid) -> bool:
    """True if a process runs no more user code: it no longer exists, is a zombie, or SIGKILL is pending for it.

    An uninterruptible call in progress still has to end (proc_pid_status(5): SigPnd of its first thread, ShdPnd).
    """
    try:
        status = bounded.read_bytes(PROC / str(pid) / "status")
    except OSError:
        return True
    # other threads continue after the first one has ended
    if status_words(status, b"State")[:1] in ([b"Z"], [b"X"]) and status_numbers(
        status, b"Threads"
    ) in ((), (0,), (1,)):
        return True
    pending = [word for field in (b"SigPnd", b"ShdPnd") for word in status_words(status, field)]
    return any(int(word, 16) & _SIGKILL_BIT for word in pending)


def namespace_numbers(pid: int, tid: int | None = None) -> tuple[int, ...]:
    """Its process ids in nested pid namespaces, ours first; empty if it cannot be read."""
    task = f"{pid}" if tid is None else f"{pid}/task/{tid}"
    try:
        return status_numbers(bounded.read_bytes(PROC / task / "status"), b"NSpid")
    except OSError:
        return ()


def process_of(tid: int) -> Pid | None:
    """The process that a thread belongs to; None if it cannot be read."""
    try:
        numbers = status_numbers(bounded.read_bytes(PROC / f"{tid}" / "status"), b"Tgid")
    except OSError:
        return None
    return Pid(numbers[0]) if numbers else None


def thread_ids(pid: int, most: int) -> list[Tid]:
    """At most `most` threads of a process, by their ids here; empty if it no longer exists."""
    try:
        with os.scandir(PROC / f"{pid}" / "task") as entries:
            return sorted(Tid(int(entry.name)) for entry in islice(entries, most))
    except OSError:
        return []


def parse_environ(raw: bytes, variables: Collection[str]) -> dict[str, str]:
    """The wanted variables of an environment block; values are cut at 200 characters.

    The block is searched once for each variable, because a program may have hundreds of thousands of them.
    """
    found = {}
    block = b"\0" + raw
    for name in variables:
        mark = b"\0%s=" % name.encode()
        if (place := block.rfind(mark)) >= 0:
            begin = place + len(mark)
            end = block.find(b"\0", begin, begin + _VALUE_BYTES)
            value = block[begin : end if end >= 0 else begin + _VALUE_BYTES]
            found[name] = value.decode("utf-8", "replace")[:_VALUE_LENGTH]
    return found


def _read(path: Path, limit: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        data = b""
        while len(data) < limit and (chunk := file.read(limit - len(data))):
            data += chunk
        return data
