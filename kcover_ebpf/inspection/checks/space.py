"""Room in /dev/shm, and on disks: blocks and inodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kcover_ebpf.inspection.mounts import find_mounts
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import FEW_INODES_SHARE, LITTLE_SPACE_SHARE

_CLEAN = "remove old images, checkpoints and logs"


def find_shm(options: InspectionOptions) -> Iterator[CheckFinding]:
    """One finding."""
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
    """A finding for each disk; servers are not asked."""
    disks = [each for each in find_mounts(options.root) if not each.is_network]
    for disk in disks:
        try:
            found = os.statvfs(disk.path)
        except OSError as error:
            yield unknown(f"{disk.label}: {error.strerror}")
            continue
        yield _room(disk.label, found)
    if not disks:
        yield unknown("no mounted disk is visible", "run on the node itself")


def _room(label: str, found: os.statvfs_result) -> CheckFinding:
    blocks = found.f_bavail / found.f_blocks if found.f_blocks else 1.0
    # Some file systems (btrfs) make inodes as they need them, and report none.
    inodes = found.f_favail / found.f_files if found.f_files else 1.0
    text = f"{label}: {blocks:.0%} of the space and {inodes:.0%} of the inodes are free"
    if not blocks or not inodes:
        return failed(text, _CLEAN)
    if blocks < LITTLE_SPACE_SHARE or inodes < FEW_INODES_SHARE:
        return warned(text, _CLEAN)
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
    "each disk has space (warn below 10%) and inodes (warn below 5%); fail when one is used up",
    "statfs",
    find_inodes,
)
