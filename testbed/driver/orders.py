"""Orders to real agents by hand, as the controller's account gives them while the controllers are away."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kcover_ebpf.api.agent_lease import AgentLease, lease_of
from kcover_ebpf.kube.client import ApiClient, connect
from testbed.driver.cluster import Cluster, ClusterError, Namespace, until
from testbed.driver.installed import NAMESPACE, Release

GROUP = "/apis/kcover.io/v1alpha1/namespaces"
CONTROLLERS = "--selector=app.kubernetes.io/component=controller"
_LASTS_S = 30.0


def session_of(release: Release, account: str, folder: Path, *bound: str) -> ApiClient:
    """A session with a token of one of the release's accounts; its kubeconfig is kept in `folder`."""
    token = release.ctl("create", "token", account, *bound).strip()
    kubeconfig = release.cluster.kubeconfig
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    server = config["clusters"][0]["cluster"]
    if "certificate-authority" in server:
        server["certificate-authority"] = str(kubeconfig.parent / server["certificate-authority"])
    file = folder / f"{account}-{time.monotonic_ns()}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return connect(str(file))


def scale(release: Release, count: int) -> None:
    """Scale the controllers to this number, and wait until they are there."""
    release.ctl("scale", "deployment/kcover-ebpf-controller", f"--replicas={count}")
    release.ctl("rollout", "status", "deployment/kcover-ebpf-controller", "--timeout=110s")
    if count == 0:
        release.ctl("wait", "pods", "--for=delete", CONTROLLERS, "--timeout=60s")


def wait_for_leader(release: Release) -> None:
    """Until one of the controllers that are there now leads: a new one may wait for the Lease of one that is gone."""

    def leads() -> bool:
        space = f"--namespace={NAMESPACE}"
        names = {pod["metadata"]["name"] for pod in release.cluster.get("pods", space, CONTROLLERS)}
        leases = release.cluster.get("leases", space)
        return any(lease["spec"].get("holderIdentity") in names for lease in leases)

    until(leads, "a controller leads")


@dataclass
class ByHand:
    """An incident whose orders a test writes; there must be no controller."""

    controller: ApiClient
    namespace: Namespace
    job: str
    selector: Mapping[str, str]
    name: str = "by-hand"
    _made: dict[str, Any] = field(default_factory=dict)

    def order(self, number: str, verb: str, phase: str = "ShuttingDown") -> str:
        """Order it, and wait until each node that reports on the job has acknowledged it; the id of the order.

        Agents remember ids on the disk of their node, which outlives a release: the namespace makes it a new one.
        """
        number = f"{self.namespace.name}-{number}"
        path = f"{GROUP}/{self.namespace.name}/incidents"
        if not self._made:
            self._made = self.controller.create(path, self._body())
        order = {
            "id": number,
            "verb": verb,
            "selector": dict(self.selector),
            "createdBefore": _time(1),
            "expires": _time(_LASTS_S),
        }
        body = {**self._made, "status": {"phase": phase, "order": order}}
        self._made = self.controller.replace(f"{path}/{self.name}/status", body)
        try:
            until(lambda: self._is_acknowledged(number), f"{number} is acknowledged", _LASTS_S)
        except ClusterError as error:
            error.add_note(f"the reports: {reports_of(self.namespace)}")
            error.add_note(f"the Leases: {leases_of(self.namespace.cluster, NAMESPACE)}")
            raise
        return number

    def _body(self) -> dict[str, Any]:
        ref = {"apiVersion": "batch/v1", "kind": "Job", "name": self.job, "uid": "u"}
        return {
            "apiVersion": "kcover.io/v1alpha1",
            "kind": "Incident",
            "metadata": {"name": self.name},
            "spec": {"job": ref},
        }

    def _is_acknowledged(self, number: str) -> bool:
        reports = reports_of(self.namespace)
        given = answers(self.namespace.cluster, NAMESPACE, reports)
        nodes = {report["node"] for report in reports}
        return bool(nodes) and all(given[node].get(number) == "Done" for node in nodes)


def reports_of(namespace: Namespace) -> list[dict[str, Any]]:
    """What the agents report on the jobs of a namespace."""
    specs = (item["spec"] for item in namespace.items("faultreports"))
    return [spec for spec in specs if "job" in spec]


def leases_of(cluster: Cluster, agents: str) -> dict[str, AgentLease]:
    """By node the Leases of the agents in the namespace `agents`."""
    found = map(lease_of, cluster.get("leases", f"--namespace={agents}"))
    return {lease.node: lease for lease in found if lease is not None}


def answers(
    cluster: Cluster, agents: str, reports: Iterable[Mapping[str, Any]]
) -> Mapping[str, Mapping[str, str]]:
    """By node what its agent answered to which order: in its Lease, or in its report of a gang."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for spec in reports:
        found[spec["node"]] |= {ack["order"]: ack["result"] for ack in spec.get("acks", ())}
    for node, lease in leases_of(cluster, agents).items():
        found[node] |= {ack.order: ack.result.value for ack in lease.acks}
    return found


@contextmanager
def without_controllers(release: Release, namespace: Namespace) -> Iterator[None]:
    """For orders by hand in this namespace; their incident is deleted before controllers are there and one leads."""
    scale(release, 0)
    try:
        yield
    finally:
        namespace.ctl("delete", "incidents", "--all", "--wait=false")
        scale(release, 2)
        wait_for_leader(release)


def _time(ahead_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + ahead_s))
