"""The first file of an archive: which files there are, with their checksums, and what is missing. Pure."""

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
"""Of all files of an archive that hold our own dataclasses, but for reports and the incident."""
_NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file of the archive."""

    path: str
    """Below the archive's folder, with "/"."""
    size_bytes: int
    sha256: str
    """In hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class ArchivedNode:
    """One node of which there is a part."""

    node: str
    folder: str
    """Below the archive's folder."""
    time_s: float
    """When it was taken, unix seconds by the clock of the node."""
    trigger: EvidenceTrigger
    version: str
    unobserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MissingPart:
    """A node, or a file, of which there is nothing."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole file."""

    schema: str
    job: str
    incident: str
    """Its name; empty where the node did not know it."""
    nodes: tuple[ArchivedNode, ...] = ()
    files: tuple[ArchivedFile, ...] = ()
    missing: tuple[MissingPart, ...] = ()


def plain(name: str) -> str:
    """As the name of a file: letters, digits, "-", "_" and ".", and no "." in front."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_NAME_LENGTH].lstrip(".") or "_"
