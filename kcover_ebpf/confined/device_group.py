"""A control group in which only the devices null, zero and random can be opened (bpf/confine.bpf.c).

A file that a helper opens may be a device node in a container, under any name, and opening one can have effects: it
arms a watchdog, for example. Only the device program of a control group is consulted at each open(2) whatever the
path (kernel: devcgroup_check_permission).
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
    """The group. Its program is detached when the process that made it ends."""

    def __init__(self, path: Path, link: BpfLink) -> None:
        self.path, self._link = path, link
        self.entrance = os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        """A process that writes "0" to this descriptor joins the group."""

    def close(self) -> None:
        """Remove the group, unless a process is left in it."""
        os.close(self.entrance)
        cgroups.remove(self.path)
        self._link.destroy()


def make(parents: Iterable[Path]) -> DeviceGroup:
    """Make the group below the first of these v2 groups that we are in, so that its memory is charged to ours.

    Raises `LoadError` if devices cannot be refused; the message says why. Either no such group can be written to,
    the kernel is older than 4.15, or CAP_SYS_ADMIN (or CAP_BPF with CAP_NET_ADMIN) is missing.
    """
    parent = next((path for path in parents if _is_ours(path)), None)
    if parent is None:
        raise LoadError("our own control group (version 2) was not found")
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
        # an attached program is detached when its link is closed
        bpf_object.close()
