"""Undoes what the controller did to nodes and jobs before it is uninstalled; nothing undoes it afterwards.

It takes the Lease from running controllers, so that none does it again meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident, Phase
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.context_builder import ContextBuilder
from kcover_ebpf.controller.deletions import Deletions
from kcover_ebpf.controller.device_taints import OF_NODE
from kcover_ebpf.controller.node_patches import release
from kcover_ebpf.controller.owners import Owners
from kcover_ebpf.errors import ActionError, ApiError, KcoverError, NotFound, ObjectError, TooLarge
from kcover_ebpf.kube import dra
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.leader_election import LeaderElector
from kcover_ebpf.recovery.nodes.node_health import CORDONED_FOR, OFFENCES
from kcover_ebpf.recovery.nodes.node_plan import (
    CLEARED,
    CONDITION,
    CORDONED,
    CORDONED_BY,
    INSPECTED,
    TAINT,
    UNTIL,
    NodeView,
    view_of,
)
from kcover_ebpf.recovery.repair import DRAINED, REPAIRS
from kcover_ebpf.tunables.controller import (
    OWNER_REQUEST_S,
    WITHDRAWAL_AGAIN_S,
    WITHDRAWAL_LEASE_S,
    WITHDRAWAL_TRIES,
)

_LOG = logging.getLogger(__name__)
_NOTES = (CORDONED, CORDONED_BY, UNTIL, CORDONED_FOR, OFFENCES, REPAIRS, DRAINED, CLEARED)
_CONDITIONS = (CONDITION, INSPECTED)
_WHY = "kcover-ebpf was uninstalled during the restart; the job was resumed"
_PAGE = 200
_SMALLER = 8
"""Factor by which a page of a collection is made smaller when it is too large: objects of a tenant may be large."""
Step = tuple[str, Callable[[], None]]
"""A description for the user, and the function that undoes the step, which raises `KcoverError`."""


class Withdrawal:
    """Undoes everything for one uninstallation."""

    def __init__(
        self, client: ApiClient, elector: LeaderElector, only: frozenset[str] = frozenset()
    ) -> None:
        """`elector`: one that seizes the Lease. `only`: namespaces of jobs, as the controller has them; empty: all."""
        self._client, self._elector, self._only = client, elector, only
        self._store = ObjectCache(lambda _: None)
        owners = Owners(client.hurried(OWNER_REQUEST_S))
        self._writer = ApiWriter(client, _cordons_none, lambda: elector.leads)
        contexts = ContextBuilder(self._store, owners)
        self._deletions = Deletions(self._store, contexts, self._writer)

    def run(self) -> list[str]:
        """Undo everything; returns a line with the reason for what remains. Raises `ActionError` without the Lease."""
        self._elector.start(lambda _: None, time.time)
        end_s = time.monotonic() + WITHDRAWAL_LEASE_S
        while not self._elector.leads:
            if time.monotonic() > end_s:
                raise ActionError(
                    f"the lease could not be taken within {WITHDRAWAL_LEASE_S:g} s, and nothing was undone"
                )
            time.sleep(0.2)
        left = self.undo()
        for _ in range(WITHDRAWAL_TRIES - 1):
            if not left:
                break
            time.sleep(WITHDRAWAL_AGAIN_S)
            left = self.undo()
        return left

    def undo(self) -> list[str]:
        """Undo everything that exists; returns a line for each failure."""
        left = []
        for found in (self._incidents, self._nodes, self._rules):
            try:
                for what, undo in found():
                    try:
                        undo()
                        _LOG.info("%s", what)
                    except KcoverError as error:
                        left.append(f"not done: {what}: {error}")
            except ApiError as error:
                left.append(f"not read: {error}")
        return left

    def _incidents(self) -> Iterator[Step]:
        """Incidents that have our finalizer."""
        try:
            found = list(_all_objects(self._client, f"/apis/{API_VERSION}/incidents"))
        except NotFound:
            return  # the CRDs are gone
        for raw in found:
            metadata = raw.get("metadata") or {}
            if self._only and metadata.get("namespace") not in self._only:
                continue
            incident = self._store.read_incident(raw)
            if incident is None:
                name = f"{metadata.get('namespace')}/{metadata.get('name')}"
                yield f"incident {name}", partial(_refuse, f"incident {name} cannot be read")
            elif incident.is_guarded:
                self._store.put(incident)
                what = f"incident {incident.namespace}/{incident.name}: its job is resumed"
                yield what, partial(self._end, incident)

    def _end(self, guarded_incident: Incident) -> None:
        incident, status = guarded_incident, guarded_incident.status
        if status is not None and status.phase.is_acting:
            self._deletions.resume(incident.gang, incident)
            ended = status.enter(Phase.FAILED, self._store.wall(), _WHY)
            incident = self._store.read_incident(self._writer.status(incident, ended)) or incident
        self._deletions.guard(incident, wanted=False)

    def _nodes(self) -> Iterator[Step]:
        for raw in _all_objects(self._client, "/api/v1/nodes"):
            conditions = (raw.get("status") or {}).get("conditions") or ()
            node = view_of({**raw, "conditions": conditions})
            path = f"/api/v1/nodes/{node.name}"
            if node.ours or any(taint.get("key") == TAINT for taint in node.taints):
                what = "cordon and taint are lifted"
                if node.cordoned_by_others:
                    what = "taint is lifted; it stays cordoned, because others cordoned it"
                yield f"node {node.name}: {what}", partial(self._release, node)
            notes = [note for note in _NOTES if note in node.annotations]
            if notes:
                yield f"node {node.name}: notes are removed", partial(self._forget, path, notes)
            ours = [kind for kind in _CONDITIONS if any(_is(kind, has) for has in conditions)]
            if ours:
                what = f"node {node.name}: {' and '.join(ours)} are removed"
                yield what, partial(self._remove_conditions, path, ours)

    def _release(self, node: NodeView) -> None:
        release(self._writer.api, node)

    def _forget(self, path: str, notes: list[str]) -> None:
        body = {"metadata": {"annotations": dict.fromkeys(notes)}}
        self._writer.api.merge_patch(path, body)

    def _remove_conditions(self, path: str, kinds: list[str]) -> None:
        gone = [{"$patch": "delete", "type": kind} for kind in kinds]
        self._writer.api.strategic_patch(f"{path}/status", {"status": {"conditions": gone}})

    def _rules(self) -> Iterator[Step]:
        """Our DeviceTaintRules; empty if the cluster does not serve them."""
        path, rules = dra.taint_rules(self._client, {"labelSelector": OF_NODE})
        for rule in rules:
            name = str(rule["metadata"]["name"])
            yield f"DeviceTaintRule {name} is deleted", partial(self._delete, f"{path}/{name}")

    def _delete(self, path: str) -> None:
        try:
            self._writer.api.delete(path)
        except NotFound:
            return


def _is(kind: str, condition: Mapping[str, Any]) -> bool:
    return condition.get("type") == kind


def _refuse(text: str) -> NoReturn:
    raise ObjectError(f"{text}; its finalizer is to be removed by hand")


def _cordons_none(node: str, _reason: str, _namespace: str) -> NoReturn:
    raise ActionError(f"node {node} is not cordoned: kcover-ebpf is being uninstalled")


def _all_objects(
    client: ApiClient, path: str, query: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Each object of a collection, page by page; raises `ApiError`."""
    asked, size = dict(query or {}), _PAGE
    while True:
        try:
            page = client.list(path, {**asked, "limit": str(size)})
        except TooLarge:
            if size == 1:
                raise
            size = max(1, size // _SMALLER)
            continue
        yield from page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return
        asked["continue"] = str(token)
