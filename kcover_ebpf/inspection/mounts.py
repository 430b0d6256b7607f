"""The file systems of the node that a job may wait for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kcover_ebpf.host.proc_text import mountinfo, unescaped

_DISK = frozenset({"bcachefs", "btrfs", "ext3", "ext4", "f2fs", "xfs", "zfs"})
_NETWORK = frozenset({"9p", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "wekafs"})  # fmt: skip
_READ_ONLY = frozenset({"ro", "emergency_ro"})
"""Of a super block; ext4 keeps "rw" after an error and adds "emergency_ro" since Linux 6.15."""
_CSI = re.compile(r"kubernetes\.io[~/]csi/")


@dataclass(frozen=True, slots=True)
class Mount:
    """One file system, at the first place where it is mounted."""

    place: str
    """As the node's first process sees it."""
    path: Path
    """Where this process reaches it."""
    kind: str
    source: str
    """Device, or server and export."""
    is_network: bool
    went_read_only: bool
    """It was mounted to be written, but the kernel made it read-only after an error."""
    csi_driver: str
    """Empty if no CSI driver mounted it."""

    @property
    def label(self) -> str:
        """Such as "/data (nfs4, filer:/export, CSI driver nfs.csi.k8s.io)"."""
        driver = f", CSI driver {self.csi_driver}" if self.csi_driver else ""
        return f"{self.place} ({self.kind}, {self.source}{driver})"


def find_mounts(root: Path) -> list[Mount]:
    """Disks and network file systems, each once however often it is mounted; asks no server.

    Those of the node's first process where we may see them, else our own.
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
    for each in mountinfo(text):
        kind, source = each.kind, unescaped(each.source)
        is_network = kind in _NETWORK or kind.startswith("fuse.")
        if kind not in _DISK and not is_network:
            continue
        place = unescaped(each.place)
        path = top / place.lstrip("/")
        writable, super_options = "rw" in each.options.split(","), each.super_options.split(",")
        driver = _csi_driver(path.parent / "vol_data.json") if _CSI.search(place) else ""
        broken = writable and not _READ_ONLY.isdisjoint(super_options)
        known = found.get(each.device)
        if known is None or (driver and not known.csi_driver):
            found[each.device] = Mount(place, path, kind, source, is_network, broken, driver)
    yield from found.values()


def _csi_driver(file: Path) -> str:
    """The kubelet writes the driver's name beside the mount point."""
    try:
        return str(json.loads(file.read_text()).get("driverName", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
