"""Runs programs that are installed on the node, even from a container without them.

They run in the host's root file system, or in that of the driver container, where their libraries, devices and
settings are. They also use the host's network, where DCGM has its port.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import sysfs
from kcover_ebpf.host.proc_text import split_stat

_ROOTS = (".", "run/nvidia/driver")
"""Relative to the host's root: the host itself, and the driver container of NVIDIA's GPU operator."""
_FOLDERS = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin", "bin", "sbin")
_GKE = "home/kubernetes/bin/nvidia"
_OF_FIRST = Path("/proc/1/root")
_KTHREADD = "2"
"""Process that starts all other threads of the kernel (init/main.c, rest_init)."""
KERNEL_THREAD = 0x00200000
"""Flag of a thread of the kernel: PF_KTHREAD in include/linux/sched.h."""
_FLAGS = 6
_MOST_LINKS = 8
"""Most links from a name to its file; Debian's alternatives have two."""

ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": f"/{_GKE}/lib64",
    "PATH": ":".join(f"/{folder}" for folder in (*_FOLDERS, f"{_GKE}/bin")),
}
"""Environment of a host program. Ours may contain secrets (`extraEnv` of the chart), and paths that
exist only in the container."""


def host_root() -> Path:
    """Root of the host's first process, if our container sees the host's processes; else our own root.

    Its sysfs shows the host's network interfaces and RDMA devices; ours shows those of our network namespace.
    """
    return _OF_FIRST if os.access(_OF_FIRST / "proc/1", os.R_OK) else Path("/")


def shows_processes(host: Path) -> bool:
    """Whether the host's processes are visible below its root: only its pid namespace has threads of the kernel."""
    words = split_stat(sysfs.text(host / "proc" / _KTHREADD / "stat"))[1]
    return len(words) > _FLAGS and bool(int(words[_FLAGS]) & KERNEL_THREAD)


@dataclass(frozen=True, slots=True)
class HostProgram:
    """A program that was found on the node, and the root file system that it runs in."""

    host: Path
    """The host's root, as this process sees it."""
    root: Path
    """Root file system of the program: the host's, or its driver container's."""
    path: str
    """Path of the program inside `root`."""

    @property
    def is_apart(self) -> bool:
        """It runs in another root file system than ours, which needs CAP_SYS_ADMIN and CAP_SYS_CHROOT."""
        return self.root != Path("/")

    def argv(self, *arguments: str) -> list[str]:
        """The command line, to be run with `ENVIRONMENT`."""
        chroot = ["chroot", str(self.root)] if self.is_apart else []
        return [*_into_network(self.host), *chroot, self.path, *arguments]


def find(host: Path, name: str) -> HostProgram | None:
    """The program with this name, or None; `host`: the host's root."""
    for part in _ROOTS:
        for folder in (*_FOLDERS, f"{_GKE}/bin"):
            if _is_program(host / part, f"{folder}/{name}"):
                return HostProgram(host, host / part, f"/{folder}/{name}")
    return None


def _is_program(root: Path, inside: str) -> bool:
    file = root / inside
    for _ in range(_MOST_LINKS):
        try:
            target = file.readlink()
        except OSError:
            return file.is_file() and os.access(file, os.X_OK)
        # an absolute link is relative to the root file system that contains it
        file = root / target.relative_to("/") if target.is_absolute() else file.parent / target
    return False


def other_network(host: Path) -> Path | None:
    """The host's network namespace; None if it is ours or unknown. `host`: the host's root."""
    theirs = host / "proc/1/ns/net"
    try:
        return None if theirs.samefile("/proc/self/ns/net") else theirs
    except OSError:
        return None


def _into_network(host: Path) -> list[str]:
    theirs = other_network(host)
    return [] if theirs is None else ["nsenter", f"--net={theirs}"]
