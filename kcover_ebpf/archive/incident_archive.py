"""Converts an archive of one incident (the nodes' parts and the Incident) to files and back.

Pure. Files of another program, a broken node or a torn copy are read as far as they make sense. The rest is listed
in `missing`, and never taken for healthy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kcover_ebpf.api import incident as incidents
from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.archive.manifest import (
    FORM,
    INCIDENT,
    MANIFEST,
    NODES,
    SCHEMA,
    ArchivedFile,
    ArchivedNode,
    Manifest,
    MissingPart,
    plain,
)
from kcover_ebpf.archive.node_part import ArchivedThread, GroupPressure, NodePart
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, UsageError
from kcover_ebpf.model.traced import GpuKernel, Stack

_T = TypeVar("_T")
_REPORT, _STACKS, _THREADS, _PRESSURE = (
    "report.json",
    "stacks.json",
    "threads.json",
    "pressure.json",
)
_KERNELS, _CHECKPOINTS = "kernels.json", "checkpoints.json"
_FACTS, _LOGS = "facts.jsonl", "logs"


@dataclass(frozen=True, slots=True)
class Archive:
    """All that is kept of one incident."""

    job: str
    """NAMESPACE/NAME, or the name of the program under `run`."""
    name: str = ""
    """Name of the incident; empty if unknown."""
    incident: Incident | None = None
    """The Incident; None in the part of a single node, which knows only its own report."""
    parts: tuple[NodePart, ...] = ()
    missing: tuple[MissingPart, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stacks:
    stacks: tuple[Stack, ...] = ()


@dataclass(frozen=True, slots=True)
class _Threads:
    threads: tuple[ArchivedThread, ...] = ()


@dataclass(frozen=True, slots=True)
class _Groups:
    groups: tuple[GroupPressure, ...] = ()


@dataclass(frozen=True, slots=True)
class _Kernels:
    kernels: tuple[GpuKernel, ...] = ()


@dataclass(frozen=True, slots=True)
class _Checkpoints:
    checkpoints: tuple[str, ...] = ()


def packed(archive: Archive, more: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Path below the archive's folder -> content.

    The manifest comes last: if it can be read, the archive was written completely. `more`: further texts for the
    top folder, which are listed in the manifest and never read again.
    """
    files = {name: _text(text) for name, text in (more or {}).items()}
    nodes: list[ArchivedNode] = []
    if archive.incident is not None:
        raw = incidents.object_of(archive.incident)
        if archive.incident.status is not None:
            raw["status"] = incidents.status_of(archive.incident.status)
        files[INCIDENT] = _json(raw)
    for part in archive.parts:
        folder = _folder(part.node, [node.folder for node in nodes])
        node = ArchivedNode(
            part.node, folder, part.time_s, part.trigger, part.version, part.unobserved
        )
        nodes.append(node)
        files |= {f"{folder}/{name}": content for name, content in _files_of(part).items()}
    listed = tuple(
        ArchivedFile(path, len(content), hashlib.sha256(content).hexdigest())
        for path, content in sorted(files.items())
    )
    manifest = Manifest(SCHEMA, archive.job, archive.name, tuple(nodes), listed, archive.missing)
    files[MANIFEST] = _json(FORM.encode(manifest))
    return files


def _folder(node: str, taken: Sequence[str]) -> str:
    """Folder of a node. Different node names must not share a folder, although special characters are replaced."""
    wanted = f"{NODES}/{plain(node)}"
    number = 2
    while wanted in taken:
        wanted = f"{NODES}/{plain(node)}.{number}"
        number += 1
    return wanted


def _files_of(part: NodePart) -> dict[str, bytes]:
    files = {
        _STACKS: _json(FORM.encode(_Stacks(part.stacks))),
        _THREADS: _json(FORM.encode(_Threads(part.threads))),
        _PRESSURE: _json(FORM.encode(_Groups(part.pressure))),
    }
    if part.kernels:
        files[_KERNELS] = _json(FORM.encode(_Kernels(part.kernels)))
    if part.checkpoints:
        files[_CHECKPOINTS] = _json(FORM.encode(_Checkpoints(part.checkpoints)))
    if part.report is not None:
        files[_REPORT] = _json(REPORT.encode(part.report))
    if part.facts:
        files[_FACTS] = _text("".join(f"{line}\n" for line in part.facts))
    return files | {f"{_LOGS}/{plain(name)}": _text(text) for name, text in part.logs.items()}


def _json(value: object) -> bytes:
    return _text(json.dumps(value, separators=(",", ":")) + "\n")


def _text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def unpacked(files: Mapping[str, bytes], name: str) -> Archive:
    """The archive in these files; `name`: name of the archive for messages.

    Raises `UsageError` if they are not an archive.
    """
    manifest = _manifest(files.get(MANIFEST), name)
    missing = [*manifest.missing, *_damaged(manifest, files)]
    incident = None
    if INCIDENT in files:
        try:
            incident = incidents.incident_of(_object(files[INCIDENT]))
        except ObjectError as error:
            missing.append(MissingPart(INCIDENT, str(error)))
    parts = []
    for node in manifest.nodes:
        part, wrong = _part(node, files)
        parts.append(part)
        missing += wrong
    return Archive(manifest.job, manifest.incident, incident, tuple(parts), tuple(missing))


def _manifest(content: bytes | None, name: str) -> Manifest:
    if content is None:
        raise UsageError(f"{name} is not an archive of an incident: it has no {MANIFEST}")
    try:
        raw = _object(content)
        if raw.get("schema") != SCHEMA:
            raise UsageError(
                f"{name} is not an archive that this version can read: its schema is not {SCHEMA}"
            )
        return FORM.decode(Manifest, raw, MANIFEST)
    except ObjectError as error:
        raise UsageError(f"{name} is not an archive of an incident: {error}") from error


def _damaged(manifest: Manifest, files: Mapping[str, bytes]) -> Iterator[MissingPart]:
    for listed in manifest.files:
        content = files.get(listed.path)
        if content is None:
            yield MissingPart(listed.path, "the file is not there")
        elif hashlib.sha256(content).hexdigest() != listed.sha256:
            yield MissingPart(listed.path, "its checksum differs: it was changed or truncated")


def _part(node: ArchivedNode, files: Mapping[str, bytes]) -> tuple[NodePart, list[MissingPart]]:
    wrong: list[MissingPart] = []

    def read(name: str, kind: type[_T], form: Any = FORM) -> _T | None:
        path = f"{node.folder}/{name}"
        if path not in files:
            return None
        try:
            found: _T = form.decode(kind, _object(files[path]), name)
        except ObjectError as error:
            wrong.append(MissingPart(path, str(error)))
            return None
        return found

    logs = f"{node.folder}/{_LOGS}/"
    facts = files.get(f"{node.folder}/{_FACTS}", b"").decode("utf-8", "replace")
    part = NodePart(
        node=node.node,
        time_s=node.time_s,
        trigger=node.trigger,
        version=node.version,
        report=read(_REPORT, FaultReport, REPORT),
        stacks=(read(_STACKS, _Stacks) or _Stacks()).stacks,
        threads=(read(_THREADS, _Threads) or _Threads()).threads,
        pressure=(read(_PRESSURE, _Groups) or _Groups()).groups,
        kernels=(read(_KERNELS, _Kernels) or _Kernels()).kernels,
        checkpoints=(read(_CHECKPOINTS, _Checkpoints) or _Checkpoints()).checkpoints,
        logs={
            path.removeprefix(logs): content.decode("utf-8", "replace")
            for path, content in files.items()
            if path.startswith(logs)
        },
        facts=tuple(facts.splitlines()),
        unobserved=node.unobserved,
    )
    return part, wrong


def _object(content: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ObjectError("it is not JSON") from error
    if not isinstance(raw, dict):
        raise ObjectError("it is not a JSON object")
    return raw


def merged(
    archives: Iterable[Archive], incident: Incident | None, missing: Iterable[MissingPart] = ()
) -> Archive:
    """One archive with the parts of several.

    Of two parts of one node the later counts, completed with what only the other contains.
    """
    parts: dict[str, NodePart] = {}
    job, name, wrong = "", "", list(missing)
    for archive in archives:
        job, name = job or archive.job, name or archive.name
        wrong += archive.missing
        for part in archive.parts:
            before = parts.get(part.node)
            parts[part.node] = part if before is None else _joined(before, part)
    if incident is not None:
        job, name = f"{incident.namespace}/{incident.job.name}", incident.name
    ordered = tuple(parts[node] for node in sorted(parts))
    return Archive(job, name, incident, ordered, tuple(dict.fromkeys(wrong)))


def _joined(part: NodePart, other_part: NodePart) -> NodePart:
    first, last = sorted((part, other_part), key=lambda node_part: node_part.time_s)
    return replace(
        last,
        report=_fuller(first.report, last.report),
        stacks=_filled(first.stacks, last.stacks),
        threads=last.threads or first.threads,
        pressure=last.pressure or first.pressure,
        kernels=last.kernels or first.kernels,
        checkpoints=tuple(dict.fromkeys((*first.checkpoints, *last.checkpoints))),
        logs={**first.logs, **last.logs},
        facts=last.facts or first.facts,
    )


def _fuller(report: FaultReport | None, later_report: FaultReport | None) -> FaultReport | None:
    """The later report, unless only the earlier one contains the ranks."""
    if later_report is None or (report is not None and report.ranks and not later_report.ranks):
        return report
    return later_report


def _filled(first: Sequence[Stack], last: Sequence[Stack]) -> tuple[Stack, ...]:
    """The later stacks; for a stack that could no longer be read, the frames that were read earlier."""
    before = {(stack.pid, stack.tid): stack for stack in first}
    filled = []
    for stack in last:
        old = before.get((stack.pid, stack.tid), stack)
        filled.append(
            replace(
                stack,
                rank=old.rank if stack.rank is None else stack.rank,
                python=stack.python or old.python,
                native=stack.native or old.native,
                kernel=stack.kernel or old.kernel,
            )
        )
    return tuple(filled) or tuple(first)
