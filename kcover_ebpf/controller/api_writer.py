"""What the controller writes to the API server, except its Lease; `node_reconciler` also uses `ApiWriter.api`.

Every call may be repeated: statuses carry the resourceVersion they were made from, deletions the uid, suspending a
job the resourceVersion of the object, and created objects have fixed names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from kcover_ebpf.api import incident, rfc3339
from kcover_ebpf.api.fault_policy import AvoidMode
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident, Status
from kcover_ebpf.api.job_kinds import NO_LABELS
from kcover_ebpf.controller.event_recorder import NEED_RECOVERY, PendingEvent
from kcover_ebpf.errors import ActionError, ApiError, Conflict, NotFound, Unreachable
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.recovery.restart.context import (
    SUSPENDED_BY,
    Call,
    Command,
    Cordon,
    Delete,
    DeleteAll,
    Evict,
    Suspension,
)
from kcover_ebpf.recovery.restart.methods import group_of

_LOG = logging.getLogger(__name__)


class ApiWriter:
    """Writes to the API server; raises `ApiError` if the server refuses."""

    def __init__(
        self, client: ApiClient, cordon: Callable[[str, str, str], None], leads: Callable[[], bool]
    ) -> None:
        """`cordon(node, reason, namespace)`: cordons a node within the breaker, for a job of the namespace.

        `leads`: true while this replica may write.
        """
        self._session, self._cordon, self._leads = client, cordon, leads

    @property
    def api(self) -> ApiClient:
        """The session, for one write; raises `ActionError` unless this replica leads."""
        # a pass begun as leader may outlast the Lease
        if not self._leads():
            raise ActionError("not writing: another controller may be the leader by now")
        return self._session

    def create(self, made_incident: Incident) -> dict[str, Any]:
        """Create an Incident; raises `ApiError`."""
        return self.api.create(
            _incidents(made_incident.namespace), incident.object_of(made_incident)
        )

    def status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        """Write a status; `Conflict` if another client wrote the incident since we read it."""
        body = incident.object_of(known_incident)
        body["metadata"] |= {
            "resourceVersion": known_incident.resource_version,
            "uid": known_incident.uid,
        }
        body["status"] = incident.status_of(status)
        return self.api.replace(
            f"{_incidents(known_incident.namespace)}/{known_incident.name}/status", body
        )

    def guard(self, known_incident: Incident, wanted: bool) -> dict[str, Any] | None:
        """Add our finalizer to an incident, or remove it; None if the incident is gone. `Conflict` as for `status`."""
        others = [
            finalizer for finalizer in known_incident.finalizers if finalizer != incident.FINALIZER
        ]
        finalizers = [*others, incident.FINALIZER] if wanted else others
        metadata = {"resourceVersion": known_incident.resource_version, "uid": known_incident.uid}
        body = {"metadata": {**metadata, "finalizers": finalizers}}
        try:
            return self.api.merge_patch(
                f"{_incidents(known_incident.namespace)}/{known_incident.name}", body
            )
        except NotFound:
            return None

    def avoid(
        self, known_incident: Incident, nodes: Sequence[str], mode: AvoidMode, until_s: float
    ) -> dict[str, Any] | None:
        """Set the nodes that new pods of the job avoid; None if the incident is gone. `Conflict` as for `status`."""
        names = ",".join(nodes) or None
        body = {
            "metadata": {
                "resourceVersion": known_incident.resource_version,
                "uid": known_incident.uid,
                "labels": {incident.AVOID: mode.value if nodes else None},
                "annotations": {
                    incident.AVOID_NODES: names,
                    incident.AVOID_UNTIL: rfc3339.to_text(until_s) if nodes else None,
                },
            }
        }
        try:
            return self.api.merge_patch(
                f"{_incidents(known_incident.namespace)}/{known_incident.name}", body
            )
        except NotFound:
            return None

    def note_notified(self, known_incident: Incident, notified: str) -> dict[str, Any]:
        """Record on an incident which targets were notified of its end."""
        return self.api.merge_patch(
            f"{_incidents(known_incident.namespace)}/{known_incident.name}",
            {"metadata": {"annotations": {incident.NOTIFIED: notified}}},
        )

    def pod_condition(self, namespace: str, pod: str, uid: str, change: dict[str, str]) -> None:
        """Set one condition of a pod; `ApiError` 422 if another pod has its name by now, `NotFound` if none has."""
        body = {"metadata": {"uid": uid}, "status": {"conditions": [change]}}
        self.api.strategic_patch(f"/api/v1/namespaces/{namespace}/pods/{pod}/status", body)

    def delete_incident(self, known_incident: Incident) -> None:
        """Delete an incident, unless another incident has its name by now."""
        try:
            self.api.delete(
                f"{_incidents(known_incident.namespace)}/{known_incident.name}", known_incident.uid
            )
        except (NotFound, Conflict):
            return

    def perform(self, namespace: str, call: Call, mark: str) -> None:
        """Make one API call of a restart step."""
        match call:
            case Suspension():
                self._suspend(namespace, call, mark)
            case Delete():
                self._delete(namespace, call)
            case Evict():
                self._evict(namespace, call)
            case DeleteAll():
                self._delete_all(namespace, call)
            case Command():
                self._command(namespace, call)
            case Cordon():
                for node in call.nodes:
                    self._cordon(node, call.reason, namespace)

    def _suspend(self, namespace: str, suspension: Suspension, mark: str) -> None:
        target = suspension.target
        value = target.suspended_value if suspension.suspended else target.running_value
        body: dict[str, Any] = {
            "metadata": {
                "resourceVersion": target.resource_version,
                "annotations": {SUSPENDED_BY: mark if suspension.suspended else None},
            }
        }
        nested = body
        for key in target.field[:-1]:
            nested = nested.setdefault(key, {})
        nested[target.field[-1]] = value
        path = f"/apis/{target.api_version}/namespaces/{namespace}/{target.plural}/{target.name}"
        _LOG.info(
            "%s %s/%s/%s",
            "suspend" if suspension.suspended else "resume",
            namespace,
            target.plural,
            target.name,
        )
        self.api.merge_patch(path, body)

    def _delete(self, namespace: str, delete: Delete) -> None:
        propagation = "Foreground" if delete.foreground else None
        for name, uid in delete.pods:
            _LOG.info("delete pod %s/%s (grace %d s)", namespace, name, delete.grace_s)
            try:
                self.api.delete(
                    f"/api/v1/namespaces/{namespace}/pods/{name}", uid, delete.grace_s, propagation
                )
            except (NotFound, Conflict):
                continue  # it is gone already, or another pod has its name

    def _evict(self, namespace: str, evict: Evict) -> None:
        refusals = []
        for name, uid in evict.pods:
            _LOG.info("evict pod %s/%s (grace %d s)", namespace, name, evict.grace_s)
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": {
                    "gracePeriodSeconds": evict.grace_s,
                    "preconditions": {"uid": uid},
                },
            }
            try:
                self.api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
            except (NotFound, Conflict):
                continue  # as for a deletion
            except Unreachable as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
                # a disruption budget, which may keep this pod and not the next one
                refusals.append(ApiError(str(error), error.status))
        if refusals:
            raise refusals[0]

    def _delete_all(self, namespace: str, delete_all: DeleteAll) -> None:
        if not delete_all.selector or NO_LABELS & set(delete_all.selector):
            raise ActionError("a collection of pods cannot be deleted without labels")
        selector = ",".join(f"{key}={value}" for key, value in delete_all.selector.items())
        _LOG.info("delete all pods of %s in %s", selector, namespace)
        path = f"/api/v1/namespaces/{namespace}/pods"
        parts = [f"{selector},{key} in ({','.join(values)})" for key, values in delete_all.shares]
        with ThreadPoolExecutor(max(len(parts), 1)) as pool:
            list(pool.map(lambda part: self.api.delete_collection(path, part), parts or [selector]))

    def _command(self, namespace: str, command: Command) -> None:
        group = group_of(command.target.api_version)
        body = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"name": command.name, "namespace": namespace},
            "action": command.action,
            "reason": "kcover",
            "target": {
                "apiVersion": command.target.api_version,
                "kind": command.target.kind,
                "name": command.target.name,
                "uid": command.target.uid,
                "controller": True,
            },
        }
        _LOG.info("command %s for %s %s/%s", command.action, group, namespace, command.target.name)
        try:
            self.api.create(f"/apis/bus.volcano.sh/v1alpha1/namespaces/{namespace}/commands", body)
        except Conflict:
            return  # the command exists already, and was not carried out yet

    def event(self, event: PendingEvent) -> None:
        """Create or update an Event; the format is compatible with kcover's."""
        namespace = event.about.get("namespace") or "default"
        events = f"/api/v1/namespaces/{namespace}/events"
        body: dict[str, Any] = {
            "reason": event.reason,
            "message": event.text[:1024],
            "type": "Warning" if event.warning else "Normal",
            "lastTimestamp": rfc3339.in_seconds(event.last_s),
            "count": event.count,
        }
        if event.is_known:
            try:
                self.api.merge_patch(f"{events}/{event.name}", body)
            except NotFound:
                pass  # Events live for an hour, by default
            else:
                return
        metadata: dict[str, Any] = {"name": event.name, "namespace": namespace}
        if event.warning and event.about.get("kind") == "Pod":
            metadata["annotations"] = {NEED_RECOVERY: "true"}
        new = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": dict(event.about),
            "source": {"component": "kcover-ebpf"},
            "reportingComponent": "kcover-ebpf",
            "firstTimestamp": rfc3339.in_seconds(event.first_s),
        }
        try:
            self.api.create(events, new | body)
        except Conflict:
            # reported by an earlier leader
            self.api.merge_patch(f"{events}/{event.name}", body)


def _incidents(namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/incidents"
