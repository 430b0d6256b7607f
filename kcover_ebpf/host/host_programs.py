"""Programs that are installed on the node, also for a container that has none of them.

They run in the host's files, or in those of its driver container, where their libraries, devices and settings are; and
in the host's network, where DCGM has its port.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kcover_ebpf.dataclass import dataclass

_ROOTS = (".", "run/nvidia/driver")
"""The host's files, and those of the driver container of NVIDIA's GPU operator."""
_FOLDERS = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin", "bin", "sbin")
_GKE = "home/kubernetes/bin/nvidia"
_OF_FIRST = Path("/proc/1/root")
_MOST_LINKS = 8
"""From a name to its file: Debian's alternatives take two."""

ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": f"/{_GKE}/lib64",
    "PATH": ":".join(f"/{folder}" for folder in (*_FOLDERS, f"{_GKE}/bin")),
}
"""Of a program of the host. Ours may have secrets (`extraEnv` of the chart), and names what only the container has."""


def host_root() -> Path:
    """The files of the host's first process, also for a container that sees its processes; else our own.

    Its sysfs shows the host's network interfaces and RDMA devices: ours shows those of our network namespace.
    """
    return _OF_FIRST if os.access(_OF_FIRST / "proc/1", os.R_OK) else Path("/")


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Where one was found."""

    host: Path
    """The host's files, as we see them."""
    root: Path
    """Those it runs in: the host's, or its driver container's."""
    path: str
    """Within them."""

    @property
    def is_apart(self) -> bool:
        """It runs in other files than ours, for which CAP_SYS_ADMIN and CAP_SYS_CHROOT are needed."""
        return self.root != Path("/")

    def argv(self, *arguments: str) -> list[str]:
        """The command, to be run with `ENVIRONMENT`."""
        chroot = ["chroot", str(self.root)] if self.is_apart else []
        return [*_into_network(self.host), *chroot, self.path, *arguments]


def find(host: Path, name: str) -> HostProgram | None:
    """The program of this name; `host`: the host's files."""
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
        # that of an absolute link is meant from the root that it lies in
        file = root / target.relative_to("/") if target.is_absolute() else file.parent / target
    return False


def other_network(host: Path) -> Path | None:
    """The host's network namespace; None where it is ours, or not known. `host`: the host's files."""
    theirs = host / "proc/1/ns/net"
    try:
        return None if theirs.samefile("/proc/self/ns/net") else theirs
    except OSError:
        return None


def _into_network(host: Path) -> list[str]:
    theirs = other_network(host)
    return [] if theirs is None else ["nsenter", f"--net={theirs}"]
