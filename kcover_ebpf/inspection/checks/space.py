"""Free space in /dev/shm, and on disks: blocks and inodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kcover_ebpf.inspection.mounts import find_mounts
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import FEW_INODES_SHARE, LITTLE_SPACE_SHARE

_CLEAN = "remove old images, checkpoints and logs"
_CLEAN_VOLUME = "make room in the volume, or enlarge it"


def find_shm(options: InspectionOptions) -> Iterator[CheckFinding]:
    """One finding about the size and free space of /dev/shm."""
    try:
        found = os.statvfs(options.root / "dev/shm")
    except OSError as error:
        mount = "mount -t tmpfs tmpfs /dev/shm"
        yield failed(f"/dev/shm: {error.strerror}; NCCL and data loaders need it", mount)
        return
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    text = f"/dev/shm: {free >> 20} MiB of {size >> 20} MiB are free"
    clean = "remove what dead jobs left there: ls -l /dev/shm"
    if not free:
        yield failed(text, clean)
    elif free < LITTLE_SPACE_SHARE * size:
        yield warned(text, clean)
    else:
        yield passed(text)


def find_inodes(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each writable disk; file servers are not asked."""
    mounts = find_mounts(options.root)
    disks = [mount for mount in mounts if not (mount.is_network or mount.is_read_only)]
    for disk in disks:
        try:
            found = os.statvfs(disk.path)
        except OSError as error:
            if disk.is_in_place():
                yield unknown(f"{disk.label}: {error.strerror}")
            continue
        clean = _CLEAN_VOLUME if disk.is_volume else _CLEAN
        yield disk.judged(_room(disk.label, found, clean))
    if not disks:
        yield unknown("no mounted disk that may be written is visible", "run on the node itself")


def _room(label: str, found: os.statvfs_result, clean: str) -> CheckFinding:
    blocks = found.f_bavail / found.f_blocks if found.f_blocks else 1.0
    # Some file systems (btrfs) create inodes on demand, and report none.
    inodes = found.f_favail / found.f_files if found.f_files else 1.0
    text = f"{label}: {blocks:.0%} of the space and {inodes:.0%} of the inodes are free"
    if not blocks or not inodes:
        return failed(text, clean)
    if blocks < LITTLE_SPACE_SHARE or inodes < FEW_INODES_SHARE:
        return warned(text, clean)
    return passed(text)


SHM_CHECK = Check(
    "shm",
    Cost.LIGHT,
    5.0,
    "/dev/shm is there, and has room (warn below 10%, fail when full)",
    "statfs",
    find_shm,
)
INODES_CHECK = Check(
    "inodes",
    Cost.LIGHT,
    10.0,
    "each disk that is mounted to be written has space (warn below 10%) and inodes (warn below 5%); fail when one is "
    "used up (only a warning of a volume of pods)",
    "statfs",
    find_inodes,
)
