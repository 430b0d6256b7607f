"""What /proc says about processes: who they are, and the clocks of this host. Reads only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.host.proc_text import split_stat, status_numbers, status_words
from kcover_ebpf.ids import NS, Pid

PROC = Path("/proc")
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)
_TICK_NS = NS // os.sysconf("SC_CLK_TCK")
_WORDS = 16
_STATUS_BYTES = 64 << 10
"""The list of supplementary groups is the part without an end: 65,536 numbers."""
_ENVIRON_BYTES = 256 * 1024


def boottime_ns() -> int:
    """Now on CLOCK_BOOTTIME, the clock of all facts."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def unix_offset_s() -> float:
    """Seconds to add to a boottime to get unix time, as of now."""
    return time.time() - boottime_ns() / NS


def every_process() -> list[Pid]:
    """All processes of this pid namespace, in the order of their numbers."""
    with os.scandir(PROC) as entries:
        return [Pid(int(entry.name)) for entry in entries if entry.name.isdecimal()]


def read_process(pid: Pid, variables: Collection[str]) -> ProcessSeen | None:
    """Who a process is, with those of `variables` that its environment sets.

    None if it is gone, or has no words: it is a zombie, or in the midst of an exec, and may be asked
    again.
    """
    folder = PROC / str(pid)
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
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
_MOST_FILES = 65536
"""Descriptors that are read of one process: some 2 us each."""


def open_paths(pid: Pid, proc: Path = PROC) -> frozenset[str] | None:
    """Where the descriptors of a process lead, as /proc words it; None where they cannot be read."""
    folder = proc / str(pid) / "fd"
    try:
        names = os.listdir(folder)[:_MOST_FILES]  # noqa: PTH208 - a path object each costs more
    except OSError:
        return None
    found = set()
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(os.readlink(folder / name))  # noqa: PTH115
    return frozenset(found)


def open_among(pid: Pid, paths: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Those of `paths` that a process has open; none where its descriptors cannot be read."""
    found = open_paths(pid, proc)
    return frozenset() if found is None else found.intersection(paths)


def open_devices(pid: Pid) -> frozenset[str] | None:
    """Files of GPUs, accelerators and RDMA devices that a process has open, as it named them; None if it is gone."""
    paths = open_paths(pid)
    return (
        paths if paths is None else frozenset(each for each in paths if each.startswith(_DEVICES))
    )


def start_ns(pid: Pid) -> int | None:
    """Boottime at which a process began, early by at most a clock tick (10 ms); None if it is gone or a zombie.

    Reads a file that takes no lock of the process's memory, so it never blocks.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # with a zombie leader the other threads may live, and then the sampler sees them
    return None if split_stat(text)[1][0] in "ZX" else parse_stat(text)[2]


def parse_stat(text: str) -> tuple[str, Pid, int]:
    """(name, parent, start in boottime ns) of a /proc/PID/stat line; the name may hold anything, also ")"."""
    comm, words = split_stat(text)
    return comm, Pid(int(words[1])), int(words[19]) * _TICK_NS


def comm(pid: int, proc: Path = PROC) -> str:
    """The name of a process; empty if it is gone or unreadable. It may hold whatever ends a line."""
    try:
        raw = (proc / str(pid) / "comm").read_bytes()
    except OSError:
        return ""
    return raw.removesuffix(b"\n").decode(errors="replace")


def boot_id() -> str:
    """The kernel's random name of this boot (proc_sys_kernel(5)); raises `OSError`."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def task_state(pid: int, tid: int | None = None) -> str:
    """The letter of a process's first thread, or of one of its threads; empty for one that is gone."""
    task = f"{pid}" if tid is None else f"{pid}/task/{tid}"
    try:
        text = (PROC / task / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return split_stat(text)[1][0]


def is_dying(pid: Pid) -> bool:
    """True for a process that runs no more code of its own: it is gone, a zombie, or SIGKILL is pending for it.

    What is in an uninterruptible call still ends that call (proc_pid_status(5): SigPnd of its first thread, ShdPnd).
    """
    try:
        status = _read(PROC / str(pid) / "status", _STATUS_BYTES)
    except OSError:
        return True
    # a first thread that has ended leaves the others running
    if status_words(status, b"State")[:1] in ([b"Z"], [b"X"]) and status_numbers(
        status, b"Threads"
    ) in ((), (0,), (1,)):
        return True
    pending = [word for field in (b"SigPnd", b"ShdPnd") for word in status_words(status, field)]
    return any(int(word, 16) & _SIGKILL_BIT for word in pending)


def namespace_numbers(pid: int, tid: int | None = None) -> tuple[int, ...]:
    """Its numbers in nested pid namespaces, ours first; empty once it is gone, or where it cannot be read."""
    task = f"{pid}" if tid is None else f"{pid}/task/{tid}"
    try:
        return status_numbers((PROC / task / "status").read_bytes(), b"NSpid")
    except OSError:
        return ()


def parse_environ(raw: bytes, variables: Collection[str]) -> dict[str, str]:
    """The wanted variables of an environment block; values are cut at 200 characters."""
    found = {}
    for entry in raw.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        key = name.decode("utf-8", "replace")
        if separator and key in variables:
            found[key] = value.decode("utf-8", "replace")[:200]
    return found


def _read(path: Path, limit: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        data = b""
        while len(data) < limit and (chunk := file.read(limit - len(data))):
            data += chunk
        return data
