"""Collects the archive of an incident from a cluster: the parts of all nodes through their agents, and the Incident.

Each part is stored in a folder as soon as it arrives, so that a second call fetches only what is still missing.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.api.incident import Incident
from kcover_ebpf.archive.incident_archive import Archive, merged, packed, unpacked
from kcover_ebpf.archive.manifest import MANIFEST, MissingPart, plain
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, CannotObserve, StoreError, Unreachable, UsageError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.exec import Exec
from kcover_ebpf.output import archives
from kcover_ebpf.output.bundles import write_private
from kcover_ebpf.output.part_transfer import Received
from kcover_ebpf.stores.store import PartStore, part_key
from kcover_ebpf.trace.gang.agent_pods import AGENT_CONTAINER, agent_on
from kcover_ebpf.tunables.kube import PART_LIMIT_S, PART_MOST_BYTES, PART_TRIES, PARTS_AT_ONCE
from kcover_ebpf.tunables.trace import BEAT_S

_PARTS = ".parts"


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """One bundle that a node reported as kept."""

    node: str
    path: str
    """Path of the bundle; if the node did not report its name, path of the folder that should
    contain it."""
    incident: str = ""
    """Name of the incident whose newest bundle is wanted, if `path` is a folder; else empty."""

    @property
    def file_name(self) -> str:
        """Name of the local file for the fetched bundle."""
        name = self.incident or self.path.rpartition("/")[2]
        return f"{plain(self.node)}-{plain(name)}.tar.gz"

    @property
    def arguments(self) -> list[str]:
        """Arguments of the command on the node that sends the bundle."""
        return [self.path, *(["--newest-of", self.incident] if self.incident else [])]


def kept_bundles(incident: Incident) -> tuple[KeptBundle, ...]:
    """All bundles listed in the Incident (even two of one node), and the newest of every other node of the job.

    An Incident lists at most 64, and the report of an agent may have been lost. The folder is the same on all
    nodes.
    """
    if incident.status is None:
        return ()
    pairs = (entry.partition(":") for entry in incident.status.bundles)
    listed = [KeptBundle(node, path) for node, _, path in pairs if node and path]
    keepers = {kept.node for kept in listed}
    folders = Counter(kept.path.rpartition("/")[0] for kept in listed).most_common(1)
    others = [
        KeptBundle(node, folder, incident.name)
        for folder, _ in folders
        for node in incident.status.nodes
        if node not in keepers
    ]
    return (*listed, *others)


@dataclass(frozen=True, slots=True)
class PartSources:
    """Where parts are fetched from: agents, and a store for those that are gone."""

    client: ApiClient
    agent_namespace: str | None = None
    """Namespace of the agents; None: search for it."""
    store: PartStore | None = None
    """Store with copies of agents' parts, for those that no agent has any more; None: no store."""


def fetched(sources: PartSources, incident: Incident, folder: Path) -> Archive:
    """The archive with every part that could be fetched; the others are in `missing`.

    `folder`: where parts are stored.
    """
    wanted = kept_bundles(incident)
    parts_folder = folder / _PARTS
    _make(folder)  # first: as the parent of another one, all users could read it
    _make(parts_folder)
    with ThreadPoolExecutor(PARTS_AT_ONCE, "kcover-fetch") as pool:
        fetches = [
            pool.submit(_part, sources, incident.namespace, kept, parts_folder) for kept in wanted
        ]
        answers = [fetch.result() for fetch in fetches]
    found = [answer for answer in answers if isinstance(answer, Archive)]
    missing = [answer for answer in answers if isinstance(answer, MissingPart)]
    return merged(found, incident, [*missing, *_silent(incident, wanted)])


def _silent(incident: Incident, wanted: Sequence[KeptBundle]) -> list[MissingPart]:
    """Nodes of the job that kept nothing, as far as the controller knows."""
    keepers = {kept.node for kept in wanted}
    nodes = incident.status.nodes if incident.status is not None else ()
    why = "it reported no bundle for this incident"
    return [MissingPart(node, why) for node in nodes if node not in keepers]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error


def _part(
    sources: PartSources, namespace: str, kept: KeptBundle, folder: Path
) -> Archive | MissingPart:
    path = folder / kept.file_name
    try:
        name = f"the bundle of {kept.node}"
        if path.exists():
            archive = unpacked(archives.read_files(path), name)
        else:
            received = _of_agent_or_store(sources, namespace, kept)
            # only what can be read is stored: the next call fetches anything else again
            archive = unpacked(archives.from_tar(received, name), name)
            draft = path.with_suffix(".draft")
            draft.write_bytes(received)
            draft.rename(path)
        # a node may only deliver its own part, whatever node name its data contains
        parts = tuple(replace(part, node=kept.node) for part in archive.parts[:1])
        return replace(archive, parts=parts)
    except (UsageError, CannotObserve, ApiError) as error:
        why = f"it reported no bundle for this incident; {error}" if kept.incident else str(error)
        return MissingPart(kept.node, why)
    except OSError as error:
        return MissingPart(kept.node, f"cannot write {path}: {error.strerror}")


def _of_agent_or_store(sources: PartSources, namespace: str, kept: KeptBundle) -> bytes:
    """The packed bundle; raises the errors of `_received`."""
    try:
        return _received(sources.client, kept, sources.agent_namespace)
    except (UsageError, CannotObserve, ApiError) as error:
        if sources.store is None or kept.incident:
            raise
        key = part_key(namespace, kept.node, kept.path.rpartition("/")[2])
        try:
            content = sources.store.get(key, PART_MOST_BYTES)
        except StoreError as store_error:
            raise CannotObserve(f"{error}; nor from the store: {store_error}") from error
        if content is None:
            raise CannotObserve(f"{error}; nor is {key} in the store") from error
        return content


def _received(client: ApiClient, kept: KeptBundle, agent_namespace: str | None) -> bytes:
    """The packed bundle; raises the errors of `agent_on`, `Exec` and `Received`."""
    namespace, agent = agent_on(client, kept.node, agent_namespace)
    received, end_s = Received(), time.monotonic() + PART_LIMIT_S
    why = ""
    for _ in range(PART_TRIES):
        offset = str(len(received.data))
        command = ["kcover-ebpf", "report", *kept.arguments, "--transfer-from", offset]
        try:
            with Exec(client, namespace, agent, AGENT_CONTAINER, command) as running:
                lines = running.lines(BEAT_S)
                if received.take(_until(lines, end_s)):
                    return bytes(received.data)
                why = running.refusal or running.said or "the connection was cut"
        except Unreachable as error:
            # a broken connection is retried; a refusal is final
            why = str(error)
        except UsageError as error:
            why = running.said.removeprefix("kcover-ebpf: ") or str(error)
        if time.monotonic() >= end_s:
            why = f"it took longer than {PART_LIMIT_S:.0f} s"
            break
    raise CannotObserve(f"the agent {namespace}/{agent}: {why}")


def _until(lines: Iterator[str], end_s: float) -> Iterator[str]:
    for line in lines:
        yield line
        if time.monotonic() >= end_s:
            return


def write_folder(archive: Archive, folder: Path) -> int:
    """Write the merged archive, which contains the ends of logs, for its owner only, and return its bytes.

    Fetched parts are deleted once nothing is missing. Raises `UsageError`.
    """
    files = packed(archive)
    try:
        write_private(folder, files)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    if not archive.missing:
        shutil.rmtree(folder / _PARTS, ignore_errors=True)
    return sum(map(len, files.values()))


def check_folder(folder: Path) -> None:
    """Raise `UsageError` for a folder that contains something other than an archive."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with --to")
    names = {path.name for path in folder.iterdir()}
    if names and not names & {MANIFEST, _PARTS}:
        raise UsageError(
            f"{folder} is not empty and holds no archive: name another folder with --to"
        )
