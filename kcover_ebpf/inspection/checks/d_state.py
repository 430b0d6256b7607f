"""Finds threads in uninterruptible sleep (state D) for longer than a healthy device takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import host_programs, sysfs
from kcover_ebpf.host.host_programs import KERNEL_THREAD
from kcover_ebpf.host.proc_text import split_stat
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, passed, unknown, warned
from kcover_ebpf.tunables.inspection import STUCK_THREAD_S

_STAT_BYTES = 1024
"""Most bytes of a line of stat: 52 numbers and a name."""
_STATE_BYTES = 64
"""Bytes of stat up to the state: a number, and the name of a thread, which has at most 15 bytes."""
_SHOWN = 5
"""Most threads that are described; all are counted."""


@dataclass(frozen=True, slots=True)
class _Sleeper:
    folder: str
    """Folder of the thread below /proc."""
    name: str
    switches: str
    """Context switch counts in its status: if they are equal after a while, it slept all the time."""


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each such thread, or one that there is none."""
    before = list(_sleepers(options.root))
    if before:
        options.pause(STUCK_THREAD_S)
    stuck = [sleeper for sleeper in before if _state(sleeper.folder) == sleeper]
    for sleeper in stuck[:_SHOWN]:
        channel = sysfs.text(Path(sleeper.folder) / "wchan")
        where = f" in {channel}" if channel not in ("", "0") else ""
        text = f"thread {Path(sleeper.folder).name} ({sleeper.name}) is in D for over {STUCK_THREAD_S:g} s{where}"
        yield warned(text, _advice(channel))
    if len(stuck) > _SHOWN:
        yield warned(f"{len(stuck)} threads are in D", "")
    if stuck:
        return
    if host_programs.shows_processes(options.root):
        yield passed(f"no thread is in D for {STUCK_THREAD_S:g} s")
    else:
        yield unknown("the host's processes are not visible", "run in its PID namespace (hostPID)")


def _advice(channel: str) -> str:
    if channel.startswith(("nv", "os_", "uvm", "rm_")):
        return "the GPU's driver does not answer: see dmesg for Xids; reboot the node"
    if channel.startswith(("nfs", "rpc", "fuse", "ceph", "lustre")):
        return "a storage server does not answer: see kcover-ebpf inspect --checks storage"
    return "see what it waits for: kcover-ebpf trace --pid PID"


def _sleepers(root: Path) -> Iterator[_Sleeper]:
    # by descriptors of folders, not by paths: a node has ten thousand threads
    proc = f"{root}/proc"
    with _folder(proc) as inside:
        if inside is None:
            return
        for pid in filter(str.isdecimal, _names(inside)):
            for tid in _in_d(pid, inside):
                if (sleeper := _state(f"{proc}/{pid}/task/{tid}")) is not None:
                    yield sleeper


def _in_d(pid: str, proc: int) -> Iterator[str]:
    """The threads of a program that are in state D; none of the kernel, of which some may sleep so.

    For a single thread the state of its process is read.
    """
    fields = split_stat(_start(f"{pid}/stat", proc, _STAT_BYTES).decode(errors="replace"))[1]
    if len(fields) < 18 or int(fields[6]) & KERNEL_THREAD:
        return
    if fields[17] == "1":
        yield from [pid] if fields[0] == "D" else []
        return
    with _folder(f"{pid}/task", proc) as task:
        if task is None:
            return
        for tid in _names(task):
            text = _start(f"{tid}/stat", task, _STATE_BYTES)
            if text[text.rfind(b")") + 2 :][:1] == b"D":
                yield tid


@contextmanager
def _folder(path: str, inside: int | None = None) -> Iterator[int | None]:
    """Descriptor of the folder; None if the process has ended."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=inside)
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        os.close(folder)


def _start(name: str, folder: int, count: int) -> bytes:
    """The first bytes of a file; empty if it no longer exists."""
    try:
        file = os.open(name, os.O_RDONLY, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.read(file, count)
    except OSError:  # ESRCH: it ended meanwhile
        return b""
    finally:
        os.close(file)


def _names(folder: str | int) -> list[str]:
    """Names in a folder, by path or descriptor; empty if the process has ended."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are enough, and paths are slow
    except OSError:
        return []


def _state(folder: str) -> _Sleeper | None:
    """A program's thread that is in state D; None for any other."""
    try:
        with open(f"{folder}/stat", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    name, fields = split_stat(text)
    if len(fields) < 7 or fields[0] != "D" or int(fields[6]) & KERNEL_THREAD:
        return None
    lines = sysfs.text(Path(folder) / "status").splitlines()
    switches = "\n".join(line for line in lines if "ctxt_switches" in line)
    return _Sleeper(folder, name, switches)


CHECK = Check(
    "d_state",
    Cost.LIGHT,
    15.0,
    "no thread of a program stays in uninterruptible sleep for 5 s; with the kernel function it waits in",
    "`/proc/*/stat`, `/proc/*/task/*/stat`, `wchan`",
    find,
)
