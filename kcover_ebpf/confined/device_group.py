"""A control group in which no device can be opened but null, zero and random (bpf/confine.bpf.c).

What a helper opens may be a device node in a container, whatever it is called, and opening one does things: it arms a
watchdog. Only a control group's device program is asked at each open(2), whatever the path (kernel:
devcgroup_check_permission).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kcover_ebpf.errors import LoadError
from kcover_ebpf.host import cgroups
from kcover_ebpf.kernel.objects import BpfLink, BpfObject
from kcover_ebpf.kernel.probes import open_object

_PREFIX = "kcover-confined"


class DeviceGroup:
    """The group, as long as its maker lives: its end takes the program off."""

    def __init__(self, path: Path, link: BpfLink) -> None:
        self.path, self._link = path, link
        self.entrance = os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        """Who writes "0" to it enters."""

    def close(self) -> None:
        """Remove it, unless something is left behind in it."""
        os.close(self.entrance)
        cgroups.remove(self.path)
        self._link.destroy()


def make(parents: Iterable[Path]) -> DeviceGroup:
    """Below the first of these v2 groups that we are in ourselves, so that memory is charged to ours.

    Raises `LoadError`, which says why devices cannot be refused: no such group can be written to, the kernel is
    older than 4.15, or CAP_SYS_ADMIN (or CAP_BPF with CAP_NET_ADMIN) is missing.
    """
    parent = next((other_path for other_path in parents if _is_ours(other_path)), None)
    if parent is None:
        raise LoadError("our own control group (version 2) is not to be found")
    path = parent / f"{_PREFIX}-{os.getpid()}"
    cgroups.sweep(parent, _PREFIX)
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise LoadError(f"no control group can be made in {parent}: {error.strerror}") from error
    try:
        return DeviceGroup(path, _attached(path))
    except (LoadError, OSError) as error:
        cgroups.remove(path)
        raise LoadError(str(error)) from error


def _is_ours(group: Path) -> bool:
    try:
        return os.getpid() in map(int, (group / "cgroup.procs").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return False


def _attached(path: Path) -> BpfLink:
    bpf_object: BpfObject = open_object("confine")
    group = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        bpf_object.load()
        return bpf_object.attach_group("may_open", group)
    finally:
        os.close(group)
        # an attached program lives as long as its link
        bpf_object.close()
