"""What the controller writes to the API server, apart from its lease; `node_reconciler` uses `ApiWriter.api`, too.

Every call may be made twice: statuses carry the resourceVersion they were made from, deletions the uid,
holds the resourceVersion of the object, and what is created has a fixed name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kcover_ebpf.api import incident, rfc3339
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident, Status
from kcover_ebpf.api.job_kinds import OWNER_UID, POD_UID
from kcover_ebpf.controller.event_recorder import NEED_RECOVERY, PendingEvent
from kcover_ebpf.errors import ActionError, Conflict, NotFound
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.recovery.context import (
    SUSPENDED_BY,
    Call,
    Command,
    Cordon,
    Delete,
    DeleteAll,
    Suspension,
)
from kcover_ebpf.recovery.methods import group_of

_LOG = logging.getLogger(__name__)


class ApiWriter:
    """Writes; raises `ApiError` where the server refuses."""

    def __init__(
        self, session: ApiClient, cordon: Callable[[str, str, str], None], leads: Callable[[], bool]
    ) -> None:
        """`cordon(node, reason, namespace)`: cordons a node as a job of the namespace asks, within the breaker.

        `leads`: whether we may write.
        """
        self._session, self._cordon, self._leads = session, cordon, leads

    @property
    def api(self) -> ApiClient:
        """The session, for one write; raises `ActionError` unless we lead."""
        # a pass that was begun as the leader may continue for longer than the lease
        if not self._leads():
            raise ActionError("not writing: another controller may be the leader by now")
        return self._session

    def create(self, made: Incident) -> dict[str, Any]:
        """Make an incident."""
        return self.api.create(_incidents(made.namespace), incident.object_of(made))

    def status(self, known: Incident, status: Status) -> dict[str, Any]:
        """Write a status; `Conflict` if another client wrote the incident since we read it."""
        body = incident.object_of(known)
        body["metadata"] |= {"resourceVersion": known.resource_version, "uid": known.uid}
        body["status"] = incident.status_of(status)
        return self.api.replace(f"{_incidents(known.namespace)}/{known.name}/status", body)

    def guard(self, known: Incident, wanted: bool) -> dict[str, Any] | None:
        """Put our finalizer on an incident, or take it off; None if it is gone. `Conflict` as for `status`."""
        others = [each for each in known.finalizers if each != incident.FINALIZER]
        finalizers = [*others, incident.FINALIZER] if wanted else others
        metadata = {"resourceVersion": known.resource_version, "uid": known.uid}
        body = {"metadata": {**metadata, "finalizers": finalizers}}
        try:
            return self.api.merge_patch(f"{_incidents(known.namespace)}/{known.name}", body)
        except NotFound:
            return None

    def delete_incident(self, known: Incident) -> None:
        """Delete an incident, unless another one has its name by now."""
        try:
            self.api.delete(f"{_incidents(known.namespace)}/{known.name}", known.uid)
        except (NotFound, Conflict):
            return

    def perform(self, namespace: str, call: Call, mark: str) -> None:
        """Make one call of a step."""
        match call:
            case Suspension():
                self._suspend(namespace, call, mark)
            case Delete():
                self._delete(namespace, call)
            case DeleteAll():
                self._delete_all(namespace, call)
            case Command():
                self._command(namespace, call)
            case Cordon():
                for node in call.nodes:
                    self._cordon(node, call.reason, namespace)

    def _suspend(self, namespace: str, call: Suspension, mark: str) -> None:
        target = call.target
        value = target.suspended_value if call.suspended else not target.suspended_value
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": target.resource_version,
                "annotations": {SUSPENDED_BY: mark if call.suspended else None},
            }
        }
        nested = body
        for key in target.field[:-1]:
            nested = nested.setdefault(key, {})
        nested[target.field[-1]] = value
        path = f"/apis/{target.api_version}/namespaces/{namespace}/{target.plural}/{target.name}"
        _LOG.info(
            "%s %s/%s/%s",
            "suspend" if call.suspended else "resume",
            namespace,
            target.plural,
            target.name,
        )
        self.api.merge_patch(path, body)

    def _delete(self, namespace: str, call: Delete) -> None:
        propagation = "Foreground" if call.foreground else None
        for name, uid in call.pods:
            _LOG.info("delete pod %s/%s (grace %d s)", namespace, name, call.grace_s)
            try:
                self.api.delete(
                    f"/api/v1/namespaces/{namespace}/pods/{name}", uid, call.grace_s, propagation
                )
            except (NotFound, Conflict):
                continue  # it went by itself, or another one has its name already

    def _delete_all(self, namespace: str, call: DeleteAll) -> None:
        if not call.selector or {OWNER_UID, POD_UID} & set(call.selector):
            raise ActionError("a collection of pods cannot be deleted without labels")
        selector = ",".join(f"{key}={value}" for key, value in call.selector.items())
        _LOG.info("delete all pods of %s in %s", selector, namespace)
        path = f"/api/v1/namespaces/{namespace}/pods"
        parts = [f"{selector},{key} in ({','.join(values)})" for key, values in call.shares]
        with ThreadPoolExecutor(max(len(parts), 1)) as pool:
            list(pool.map(lambda part: self.api.delete_collection(path, part), parts or [selector]))

    def _command(self, namespace: str, call: Command) -> None:
        group = group_of(call.target.api_version)
        body = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"name": call.name, "namespace": namespace},
            "action": call.action,
            "reason": "kcover",
            "target": {
                "apiVersion": call.target.api_version,
                "kind": call.target.kind,
                "name": call.target.name,
                "uid": call.target.uid,
                "controller": True,
            },
        }
        _LOG.info("command %s for %s %s/%s", call.action, group, namespace, call.target.name)
        try:
            self.api.create(f"/apis/bus.volcano.sh/v1alpha1/namespaces/{namespace}/commands", body)
        except Conflict:
            return  # it is there already, and was not carried out yet

    def event(self, said: PendingEvent) -> None:
        """Write an Event, or what became of it; compatible with kcover's."""
        namespace = said.about.get("namespace") or "default"
        events = f"/api/v1/namespaces/{namespace}/events"
        body: dict[str, Any] = {
            "reason": said.reason,
            "message": said.text[:1024],
            "type": "Warning" if said.warning else "Normal",
            "lastTimestamp": _seconds(said.last_s),
            "count": said.count,
        }
        if said.is_known:
            try:
                self.api.merge_patch(f"{events}/{said.name}", body)
            except NotFound:
                pass  # Events live for an hour, by default
            else:
                return
        metadata: dict[str, Any] = {"name": said.name, "namespace": namespace}
        if said.warning and said.about.get("kind") == "Pod":
            metadata["annotations"] = {NEED_RECOVERY: "true"}
        new = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": dict(said.about),
            "source": {"component": "kcover-ebpf"},
            "reportingComponent": "kcover-ebpf",
            "firstTimestamp": _seconds(said.first_s),
        }
        try:
            self.api.create(events, new | body)
        except Conflict:
            # reported by the controller that led before us
            self.api.merge_patch(f"{events}/{said.name}", body)


def _seconds(time_s: float) -> str:
    return rfc3339.to_text(time_s)[:19] + "Z"


def _incidents(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/incidents"
