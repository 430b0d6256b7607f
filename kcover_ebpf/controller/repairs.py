"""Runs an operator's Jobs on nodes that were cordoned for a device: the hook for a repair. Off without `--repairs`."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import FaultPolicy, NodeActions, holding
from kcover_ebpf.api.json_values import list_of, map_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.node_patches import change
from kcover_ebpf.controller.node_reconciler import NodeLimits
from kcover_ebpf.errors import ApiError, Conflict, NotFound
from kcover_ebpf.kube.client import ApiClient, segment
from kcover_ebpf.recovery import repair
from kcover_ebpf.recovery.nodes.node_plan import NodeView, view_of, views_with_notes
from kcover_ebpf.recovery.repair import RepairAttempt, RepairLimits, RepairPlan, RepairStep

_LOG = logging.getLogger(__name__)
REASON = "KcoverRepair"
Publish = Callable[[dict[str, str], str, str, bool], None]
_RawPod = Mapping[str, Any]
"""A pod as the API server sends it."""


class Repairs:
    """Reconciles one node at a time; each node by one thread at a time."""

    def __init__(
        self,
        client: ApiClient,
        writes: Callable[[], ApiClient],
        cache: ObjectCache,
        about_limits: NodeLimits,
        limits: RepairLimits,
        publish: Publish,
    ) -> None:
        """The Jobs are created in the namespace of `about_limits`. `writes`: raises `ActionError` unless we lead."""
        self._session, self._writes, self._store = client, writes, cache
        self._namespace, self._dry_run = about_limits.namespace, about_limits.dry_run
        self._limits, self._publish = limits, publish
        self._said: dict[str, str] = {}

    def reconcile(self, name: str) -> None:
        """Start the next step for a node, if there is one; raises `ApiError`."""
        raw = self._store.raw_nodes.get(name)
        if raw is None or not self._limits.repairs:
            return
        node = view_of(raw)
        if not node.ours:
            self._said.pop(name, None)
            return
        nodes = views_with_notes(list(self._store.raw_nodes.values()))
        health, now_s = self._store.healths.get(name), self._store.wall()
        todo = repair.plan(node, nodes, self._limits, self._policy(), now_s, health)
        if todo.repair is None:
            self._say(node, f"no repair: {todo.reason}")
            return
        users, possible = self._users(node, todo)
        if self._dry_run:
            self._say(node, f"would repair by {todo.repair.step.value}")
        elif not users and not possible:
            self._begin(node, todo)
        elif users and todo.repair.drain:
            self._drain(node, todo, users)
        else:
            use = "use it" if users else "may use it"
            count = len(users) or len(possible)
            self._say(node, f"{todo.repair.step.value} waits for {count} pods that {use} to end")

    def _drain(self, node: NodeView, plan: RepairPlan, users: Sequence[_RawPod]) -> None:
        """Evict the pods that the step would end; a disruption budget may refuse that for a while."""
        assert plan.repair is not None
        if repair.drained_since_s(node) is None:
            # the note first: it makes other nodes wait for this one
            now = rfc3339.to_text(self._store.wall())
            self._note(node, {repair.DRAINED: now})
        refused = 0
        for pod in users:
            metadata = pod["metadata"]
            name, namespace = str(metadata.get("name")), str(metadata.get("namespace"))
            if metadata.get("deletionTimestamp"):
                continue
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": {"preconditions": {"uid": metadata.get("uid")}},
            }
            path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}/eviction"
            try:
                self._writes().create(path, body)
            except (NotFound, Conflict):
                continue  # it is gone already
            except ApiError as error:
                _LOG.info("cannot evict pod %s/%s: %s", namespace, name, error)
                refused += 1
        text = (
            f"{plan.repair.step.value} waits for {len(users)} pods that use it, which are evicted"
        )
        self._say(node, text + (f"; {refused} cannot be evicted now" if refused else ""))

    def _policy(self) -> NodeActions:
        policy = holding(self._store.policies.of(self._namespace), self._namespace, {})
        return (policy.policy if policy is not None else FaultPolicy()).node

    def _users(self, node: NodeView, plan: RepairPlan) -> tuple[list[_RawPod], list[_RawPod]]:
        """Pods that a step would end, and pods of which nothing shows whether it would.

        A reset ends those that use the devices; all other steps end all pods of jobs on the node.
        """
        living = self._living(node)
        assert plan.repair is not None
        if plan.repair.step is not RepairStep.RESET_GPU:
            return living, []
        devices, now_s = set(plan.devices), self._store.wall()
        received = self._store.host_reports.get(node.name)
        is_known = received is not None and not received.is_stale(now_s)
        faults = received.report.devices if received is not None and is_known else ()
        used = self._used_devices(node.name, now_s)
        holders = {uid for fault in faults if fault.device in devices for uid in fault.pods}
        holders |= {uid for uid, of_pod in used.items() if of_pod & devices}
        users = [pod for pod in living if pod["metadata"].get("uid") in holders]
        if devices <= {fault.device for fault in faults}:
            return users, []
        # an inspection found the fault, or the agent has started since: no report names the pods
        spared = holders | {uid for uid, of_pod in used.items() if of_pod}
        others = (pod for pod in living if pod["metadata"].get("uid") not in spared)
        return users, [pod for pod in others if _may_have_devices(pod)]

    def _used_devices(self, node: str, now_s: float) -> dict[str, set[str]]:
        """Uid of each watched pod on the node -> PCI addresses of the devices that it has open."""
        return {
            pod.uid: set(pod.devices)
            for gang_id in self._store.gangs
            for received in self._store.seen(gang_id)
            if received.report.node == node and not received.is_stale(now_s)
            for pod in received.report.pods
        }

    def _living(self, node: NodeView) -> list[_RawPod]:
        """Running pods on the node, except those that every node runs (DaemonSets)."""
        listed = self._session.list("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node.name}"})
        return [
            pod
            for pod in listed.get("items", ())
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
            and pod["metadata"].get("namespace") != self._namespace
            and not any(
                owner.get("kind") in ("DaemonSet", "Node")
                for owner in pod["metadata"].get("ownerReferences") or ()
            )
        ]

    def _note(self, node: NodeView, notes: Mapping[str, str | None]) -> None:
        self._store.wrote_node(change(self._writes(), node, notes))

    def _begin(self, node: NodeView, plan: RepairPlan) -> None:
        assert plan.repair is not None
        step, made = plan.repair.step, repair.started(node)
        attempt = RepairAttempt(step, self._store.wall(), is_pending=True)
        if step not in {known.step for known in repair.attempts_of(node)}:
            # the note first: it makes other nodes wait for this one
            note = repair.noted_attempts((*made, attempt))
            self._note(node, {repair.REPAIRS: note, repair.DRAINED: None})
        body = job_of(node, plan, self._namespace)
        try:
            jobs = f"/apis/batch/v1/namespaces/{segment(self._namespace)}/jobs"
            self._writes().create(jobs, body)
        except Conflict:
            pass  # an earlier request created it
        except ApiError as error:
            # whether it was created or not: the next request for a Job of this name begins nothing twice
            self._say(node, f"the Job of {step.value} was not confirmed, trying again: {error}")
            return
        note = repair.noted_attempts((*made, replace(attempt, is_pending=False)))
        raw = self._store.raw_nodes.get(node.name)
        if raw is None:
            return  # the node was deleted meanwhile
        self._note(view_of(raw), {repair.REPAIRS: note})
        devices = f" of {', '.join(plan.devices)}" if plan.devices else ""
        self._say(node, f"{step.value}{devices} by Job {body['metadata']['name']}")

    def _say(self, node: NodeView, text: str) -> None:
        if self._said.get(node.name) == text:
            return
        self._said[node.name] = text
        about = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        _LOG.info("node %s: %s", node.name, text)
        self._publish(about, REASON, text, False)


def job_of(node: NodeView, plan: RepairPlan, namespace: str) -> dict[str, Any]:
    """The operator's Job for one attempt; its name is fixed, so that it is created once."""
    assert plan.repair is not None
    spec: dict[str, Any] = copy.deepcopy(dict(plan.repair.job))
    pod = spec["template"]["spec"]
    if plan.repair.on_node:
        # not through the scheduler, which ignores cordoned nodes
        pod["nodeName"] = node.name
        pod.setdefault("tolerations", [{"operator": "Exists"}])
    pod.setdefault("restartPolicy", "Never")
    for container in pod["containers"]:
        _add_env(
            container,
            {
                "KCOVER_NODE": node.name,
                "KCOVER_STEP": plan.repair.step.value,
                "KCOVER_DEVICES": " ".join(plan.devices),
            },
        )
    spec.setdefault("backoffLimit", 0)
    key = f"{node.uid} {node.since_s} {plan.number}"
    name = f"kcover-repair-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    labels = {
        "app.kubernetes.io/managed-by": "kcover-ebpf",
        "kcover.io/repair": plan.repair.step.value,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec,
    }


def _may_have_devices(pod: _RawPod) -> bool:
    """True if it asks for devices, of a device plug-in or by DRA; a pod may have some without that."""
    spec = map_of(pod.get("spec"))
    containers = (*list_of(spec.get("containers")), *list_of(spec.get("initContainers")))
    limits = (map_of(map_of(map_of(raw).get("resources")).get("limits")) for raw in containers)
    # only the names of extended resources have a domain
    asked = any("/" in name for names in limits for name in names)
    return asked or bool(list_of(spec.get("resourceClaims")))


def _add_env(container: dict[str, Any], values: Mapping[str, str]) -> None:
    known = [item for item in container.get("env") or () if item.get("name") not in values]
    container["env"] = [*known, *({"name": name, "value": value} for name, value in values.items())]
