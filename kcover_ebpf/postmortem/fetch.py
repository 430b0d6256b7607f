"""The archive of an incident from its cluster: the parts of all nodes through their agents, merged with the Incident.

Each part is kept in a folder as soon as it is there, so that a second call fetches only what the first one lacked.
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
from kcover_ebpf.errors import ApiError, CannotObserve, StoreError, UsageError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.exec import Exec
from kcover_ebpf.output import archives
from kcover_ebpf.output.part_transfer import Received
from kcover_ebpf.stores.store import PartStore, part_key
from kcover_ebpf.trace.gang.agent_pods import AGENT_CONTAINER, agent_on
from kcover_ebpf.tunables.kube import PART_LIMIT_S, PART_MOST_BYTES, PART_TRIES, PARTS_AT_ONCE
from kcover_ebpf.tunables.trace import BEAT_S

_PARTS = ".parts"


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """One bundle that a node said it kept."""

    node: str
    path: str
    """Of the bundle; of the folder that it should be in, where the node has not said which one it is."""
    incident: str = ""
    """Where it has not: whose newest bundle is wanted."""

    @property
    def file_name(self) -> str:
        """Of what was fetched of it."""
        name = self.incident or self.path.rpartition("/")[2]
        return f"{plain(self.node)}-{plain(name)}.tar.gz"

    @property
    def arguments(self) -> list[str]:
        """Of the command that sends it."""
        return [self.path, *(["--newest-of", self.incident] if self.incident else [])]


def kept_bundles(incident: Incident) -> tuple[KeptBundle, ...]:
    """Those that the Incident lists, of two of one node, both; and of every other node of the job the newest.

    An Incident has room for 64, and what an agent said may have been lost. The folder is the same on all nodes.
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
    """Where parts are fetched from."""

    client: ApiClient
    agent_namespace: str | None = None
    """Of the agents; None: it is searched for."""
    store: PartStore | None = None
    """That agents' parts are copied into, for those that no agent has; None: there is none."""


def fetched(sources: PartSources, incident: Incident, folder: Path) -> Archive:
    """The archive, with every part that could be fetched; what could not is in `missing`.

    `folder`: where parts are kept.
    """
    wanted = kept_bundles(incident)
    parts_folder = folder / _PARTS
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
    """Nodes of the job that kept nothing, as far as the controller was informed."""
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
        if not path.exists():
            received = _of_agent_or_store(sources, namespace, kept)
            draft = path.with_suffix(".draft")
            draft.write_bytes(received)
            draft.rename(path)
        archive = unpacked(archives.read_files(path), f"the bundle of {kept.node}")
        # a node speaks for itself alone, whatever name is in what it sent
        parts = tuple(replace(part, node=kept.node) for part in archive.parts[:1])
        return replace(archive, parts=parts)
    except (UsageError, CannotObserve, ApiError) as error:
        why = f"it reported no bundle for this incident; {error}" if kept.incident else str(error)
        return MissingPart(kept.node, why)
    except OSError as error:
        return MissingPart(kept.node, f"cannot write {path}: {error.strerror}")


def _of_agent_or_store(sources: PartSources, namespace: str, kept: KeptBundle) -> bytes:
    """The packed bundle; raises what `_received` raises."""
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
    """The packed bundle; raises what `agent_on`, `Exec` and `Received` raise."""
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
        except ApiError as error:
            # refused is refused; a connection that broke is made again
            if error.exit_code != CannotObserve.exit_code:
                raise
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
    """Write the merged archive and return its bytes; the fetched parts go once nothing is missing.

    Raises `UsageError`.
    """
    files = packed(archive)
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    if not archive.missing:
        shutil.rmtree(folder / _PARTS, ignore_errors=True)
    return sum(map(len, files.values()))


def check_folder(folder: Path) -> None:
    """Raise `UsageError` for a folder that holds something else than an archive."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with --to")
    names = {path.name for path in folder.iterdir()}
    if names and not names & {MANIFEST, _PARTS}:
        raise UsageError(
            f"{folder} is not empty and holds no archive: name another folder with --to"
        )
