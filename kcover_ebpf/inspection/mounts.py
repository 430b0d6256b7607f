"""Finds the file systems of the node on which a job may block."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.health import Result
from kcover_ebpf.host.proc_text import mountinfo, unescaped
from kcover_ebpf.inspection.result import CheckFinding

_DISK = frozenset({"bcachefs", "btrfs", "ext3", "ext4", "f2fs", "xfs", "zfs"})
_NETWORK = frozenset({
    "9p", "beegfs", "ceph", "cifs", "fuse", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs", "wekafs",
})  # fmt: skip
"""Clients in user space that name no subtype are plain "fuse", such as those for S3 and Azure Blob; the others
"fuse.NAME"."""
_READ_ONLY = frozenset({"ro", "emergency_ro"})
"""Options of a super block; ext4 keeps "rw" after an error and adds "emergency_ro" since Linux 6.15."""
_CSI = re.compile(r"kubernetes\.io[~/]csi/")
_VOLUME = re.compile(
    r"/pods/[^/]+/(?:volumes/[^/]+~[^/]+|volume-subpaths)/|/kubelet/plugins/|/plugins/kubernetes\.io/"
)
"""Where the kubelet (whose --root-dir may differ) mounts volumes of pods, and where CSI drivers
stage them."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One file system, at the first place where it is mounted."""

    place: str
    """Mount point as the node's first process sees it."""
    path: Path
    """Path by which this process reaches the mount point."""
    kind: str
    source: str
    """Device; for a network file system server and export."""
    is_network: bool
    went_read_only: bool
    """It was mounted writable, but the kernel made it read-only after an error."""
    is_read_only: bool
    """True if no mount of it is writable."""
    is_volume: bool
    """True if it is mounted only for pods: its faults affect their jobs, and disappear with them."""
    csi_driver: str
    """Name of the CSI driver that mounted it; empty if none did."""

    @property
    def label(self) -> str:
        """Name for messages, such as "/data (nfs4, filer:/export, CSI driver nfs.csi.k8s.io)"."""
        driver = f", CSI driver {self.csi_driver}" if self.csi_driver else ""
        return f"{self.place} ({self.kind}, {self.source}{driver})"

    def is_in_place(self) -> bool:
        """False if it was unmounted meanwhile, or if another mount above it hides it: no path leads to it."""
        try:
            os.close(os.open(self.path, os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)
        return True

    def judged(self, finding: CheckFinding) -> CheckFinding:
        """A finding about it.

        The volume of a pod does not make the node unfit, because the next node would mount it too.
        """
        if not self.is_volume or finding.result is not Result.FAIL:
            return finding
        evidence = f"{finding.evidence}; a volume of pods, so only their jobs are affected"
        return replace(finding, result=Result.WARN, evidence=evidence)


def find_mounts(root: Path) -> list[Mount]:
    """Disks and network file systems, each once although mounted several times; contacts no server.

    The mounts are those of the node's first process if we may read them, else our own.
    """
    for process in ("1", "self"):
        folder = root / "proc" / process
        try:
            text = (folder / "mountinfo").read_text(errors="replace")
            (folder / "root").stat()
        except OSError:
            continue
        return list(_parsed(text, folder / "root"))
    return []


def _parsed(text: str, top: Path) -> Iterator[Mount]:
    found: dict[str, Mount] = {}
    for mount_line in mountinfo(text):
        kind, source = mount_line.kind, unescaped(mount_line.source)
        is_network = kind in _NETWORK or kind.startswith("fuse.")
        if kind not in _DISK and not is_network:
            continue
        place = unescaped(mount_line.place)
        path = top / place.lstrip("/")
        writable, super_options = (
            "rw" in mount_line.options.split(","),
            mount_line.super_options.split(","),
        )
        driver = _csi_driver(path.parent / "vol_data.json") if _CSI.search(place) else ""
        broken = writable and not _READ_ONLY.isdisjoint(super_options)
        read_only = not writable or not _READ_ONLY.isdisjoint(super_options)
        is_volume = _VOLUME.search(place) is not None
        mount = Mount(place, path, kind, source, is_network, broken, read_only, is_volume, driver)
        known_mount = found.get(mount_line.device, mount)
        shown = mount if driver and not known_mount.csi_driver else known_mount
        found[mount_line.device] = replace(
            shown,
            is_read_only=known_mount.is_read_only and read_only,
            is_volume=known_mount.is_volume and is_volume,
        )
    yield from found.values()


def _csi_driver(file: Path) -> str:
    """Driver name, which the kubelet writes into a file next to the mount point."""
    try:
        return str(json.loads(file.read_text()).get("driverName", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
