"""What a drill does to a pod's containers as a whole, and how that ends: each ends with the process that did it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Helper
from kcover_ebpf.errors import CannotObserve, LoadError
from kcover_ebpf.host import cgroups
from kcover_ebpf.host.bounded import read_bytes, read_text
from kcover_ebpf.host.proc_text import split_stat
from kcover_ebpf.kernel.objects import BpfLink
from kcover_ebpf.kernel.probes import open_object
from kcover_ebpf.tunables.agent import DRILL_PRINTS_S, DRILL_SLOW_SHARE, DRILL_USE_S

_QUOTA, _QUOTA_V1, _PERIOD_V1 = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"
_CPU_MOUNTS = ("cpu,cpuacct", "cpu")
"""What distributions call the mount of the CPU controller of version 1."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PERIOD_US = 100_000
_PIDFD_GETFD = 438
"""On every architecture (include/uapi/asm-generic/unistd.h)."""
_STDERR = 2
_LEAST_QUOTA_US = 1_000
"""The kernel takes no less (kernel/sched/core.c: min_cfs_quota_period)."""
_KEEPER = "import sys; sys.stdin.read(); open(sys.argv[1], 'w').write(sys.argv[2])"
"""Writes the old limit back at the end of its input, which is our end."""
_LINE = (
    "RuntimeError: CUDA error: uncorrectable ECC error encountered (printed by a drill of kcover)\n"
)


class Means(Protocol):
    """Something that is done to a pod's containers until it is taken back."""

    def take_back(self) -> None:
        """Undo it; further calls do nothing."""
        ...


class Partition:
    """No packet leaves or reaches these containers; the kernel undoes it with the end of this process."""

    def __init__(self, groups: Sequence[Path]) -> None:
        """Raises `CannotObserve` where the kernel refuses; nothing is dropped then."""
        self._links: list[BpfLink] = []
        try:
            self._attach(groups)
        except (LoadError, OSError) as error:
            self.take_back()
            raise CannotObserve(
                f"packets cannot be dropped: {error}; the agent needs CAP_NET_ADMIN (agent.privileged)"
            ) from error

    def _attach(self, groups: Sequence[Path]) -> None:
        bpf_object = open_object("drill")
        try:
            bpf_object.load()
            for path in groups:
                group = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    for name in ("drop_sent", "drop_received"):
                        self._links.append(bpf_object.attach_group(name, group))
                finally:
                    os.close(group)
        finally:
            # an attached program lives as long as its link
            bpf_object.close()

    def take_back(self) -> None:
        """Let everything through again."""
        while self._links:
            self._links.pop().destroy()


class Slowdown:
    """The containers get a part of the CPU time that they use; another process undoes it with the end of this."""

    def __init__(self, groups: Sequence[Path]) -> None:
        """Takes `DRILL_USE_S` to see what they use; raises `CannotObserve` where no limit can be set."""
        self._keepers: list[Helper] = []
        self.before: dict[Path, str] = {}
        """The limits that they had, by file."""
        try:
            files = {group: quota_file(group) for group in groups}
            used = {group: _used_ticks(group) for group in groups}
            began_s = time.monotonic()
            time.sleep(DRILL_USE_S)
            passed_s = time.monotonic() - began_s
            self.before = {file: read_text(file).strip() for file in files.values()}
            self._quotas = {
                file: _quota(file, (_used_ticks(group) - used[group]) / _TICKS_PER_S / passed_s)
                for group, file in files.items()
            }
        except (OSError, ValueError) as error:
            raise CannotObserve(f"the CPU time of the pod cannot be limited: {error}") from error

    def begin(self) -> None:
        """Set the limits; who undoes them is there before."""
        try:
            for path, text in self.before.items():
                self._keepers.append(_keeper(path, text))
            for path, text in self._quotas.items():
                path.write_text(text)
        except OSError as error:
            self.take_back()
            raise CannotObserve(f"the CPU time of the pod cannot be limited: {error}") from error

    def take_back(self) -> None:
        """Write the old limits."""
        while self._keepers:
            keeper = self._keepers.pop()
            keeper.close_stdin()
            keeper.wait(math.inf)
            keeper.end()


def _keeper(path: Path, text: str) -> Helper:
    command = [sys.executable, "-I", "-S", "-c", _KEEPER, os.fspath(path), text]
    quiet = subprocess.DEVNULL
    # a signal to our group does not reach it
    return helper.start(
        command, None, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, session=True
    )


def quota_file(group: Path) -> Path:
    """The file that limits the CPU time of a group; raises `CannotObserve` where there is none.

    Where version 1 has the CPU controller, the group of the same name there.
    """
    candidates = [group / _QUOTA]
    for parent in group.parents:
        inside = group.relative_to(parent)
        candidates += [parent.parent / name / inside / _QUOTA_V1 for name in _CPU_MOUNTS]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise CannotObserve(
            "the CPU time of the pod cannot be limited: no CPU controller is at work"
        )
    return found


def _used_ticks(group: Path) -> int:
    return sum(max(cpu_ticks(pid), 0) for pid in cgroups.processes(group))


def cpu_ticks(pid: int) -> int:
    """CPU time of a process in clock ticks; -1 if it is gone."""
    try:
        _, words = split_stat(read_bytes(f"/proc/{pid}/stat").decode("utf-8", "replace"))
    except OSError:
        return -1
    return int(words[11]) + int(words[12])


def _quota(file: Path, used_s_per_s: float) -> str:
    period_us = _PERIOD_US
    if file.name == _QUOTA_V1:
        period_us = int(read_text(file.parent / _PERIOD_V1))
    quota_us = max(int(used_s_per_s * DRILL_SLOW_SHARE * period_us), _LEAST_QUOTA_US)
    return str(quota_us) if file.name == _QUOTA_V1 else f"{quota_us} {period_us}"


def are_changed(limits: Mapping[str, str]) -> bool:
    """True if any of these files holds another limit than this; what is gone holds none."""
    return any(_is_changed(path, text) for path, text in limits.items())


def _is_changed(path: str, text: str) -> bool:
    try:
        return read_bytes(path).decode("ascii", "replace").strip() != text
    except OSError:
        return False


def write_back(limits: Mapping[str, str]) -> None:
    """Restore limits by file; what is gone needs none."""
    for path, text in limits.items():
        with contextlib.suppress(OSError):
            if _is_changed(path, text):
                Path(path).write_text(text)


def print_error(pid: int) -> None:
    """Write a line of a broken GPU where the process writes its errors; raises `CannotObserve`.

    Its own descriptor is used (pidfd_getfd): to open the file anew could give more than the process may do with it.
    """
    try:
        descriptor = _descriptor_of(pid, _STDERR)
        try:
            # a pipe that takes the whole line takes it at once, and one that is not read is not waited for
            if not select.select([], [descriptor], [], DRILL_PRINTS_S)[1]:
                raise CannotObserve(f"the log of process {pid} is not being read")
            os.write(descriptor, _LINE.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        reason = error.strerror
        raise CannotObserve(f"the log of process {pid} cannot be written: {reason}") from error


def _descriptor_of(pid: int, number: int) -> int:
    pidfd = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        found = int(libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
    finally:
        os.close(pidfd)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
