"""The manifest of an archive: its files with checksums, and what is missing. Pure."""

from __future__ import annotations

import re

from kcover_ebpf.api.codec import Codec, Omit
from kcover_ebpf.archive.node_part import EvidenceTrigger
from kcover_ebpf.dataclass import dataclass

SCHEMA = "kcover.io/archive/v1"
MANIFEST = "manifest.json"
INCIDENT = "incident.json"
NODES = "nodes"
FORM = Codec(key=str, omit=Omit.NOTHING)
"""Encoding of all archive files with our dataclasses, except reports and the incident."""
_NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """Path, size and checksum of one file."""

    path: str
    """Path below the archive's folder, with "/"."""
    size_bytes: int
    sha256: str
    """SHA-256 of the content in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class ArchivedNode:
    """One node with a part in the archive."""

    node: str
    folder: str
    """Folder of the part, relative to the archive's folder."""
    time_s: float
    """When the part was taken (unix seconds by the node's clock)."""
    trigger: EvidenceTrigger
    version: str
    unobserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MissingPart:
    """A node or file without any data in the archive."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of manifest.json, which is written last."""

    schema: str
    job: str
    incident: str
    """Name of the incident; empty if the node did not know it."""
    nodes: tuple[ArchivedNode, ...] = ()
    files: tuple[ArchivedFile, ...] = ()
    missing: tuple[MissingPart, ...] = ()


def plain(name: str) -> str:
    """A name as a file name: letters, digits, "-", "_" and ".", and no "." at the beginning."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_NAME_LENGTH].lstrip(".") or "_"
