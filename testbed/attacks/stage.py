"""The stage of an attack: the installed chart, a job that must come to no harm, and a tenant who means it harm."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcover_ebpf.api.rfc3339 import from_text
from kcover_ebpf.kube.client import ApiClient
from testbed.attacks import meters
from testbed.attacks.hostile import JOB_NAME, SLEEPS, job
from testbed.driver.cluster import Cluster, Namespace, until
from testbed.driver.installed import NAMESPACE, Release
from testbed.driver.kinds import KINDS
from testbed.driver.nodes import cordoned_nodes
from testbed.driver.orders import session_of
from testbed.driver.restarts import hang, incidents, stopped

JOB = KINDS["job"]
OVER = ("Recovered", "Failed", "Refused", "Observed")
ACCOUNT = "tenant"


@dataclass(frozen=True)
class Condition:
    """What must be the same after an attack."""

    restarts: dict[str, int]
    """By uid of the pod."""
    suspended: bool
    incidents: frozenset[str]
    shut: frozenset[str]
    """Nodes that take no pods."""


def faults_of(namespace: Namespace) -> list[dict[str, Any]]:
    """Incidents about more than a slow rank: an attack that takes the processors does make the victim slow."""
    return [
        incident
        for incident in incidents(namespace)
        if incident.get("status", {}).get("verdict") not in (None, "SLOW")
    ]


@dataclass(frozen=True)
class Recovery:
    """What became of a job after a rank of it was stopped, in seconds from then."""

    running_s: float
    """All of its ranks had been started again."""
    took_s: float
    """Its incident was Recovered: they trained."""


@dataclass(frozen=True)
class Victim:
    """A healthy job, armed, in its own namespace."""

    namespace: Namespace

    def pods(self) -> list[dict[str, Any]]:
        """Its own, by name: others may carry its labels."""
        found = self.namespace.pods(JOB.selector)
        mine = [entry for entry in found if entry["metadata"]["name"].startswith("demo-")]
        return sorted(mine, key=lambda entry: str(entry["metadata"]["name"]))

    def condition(self) -> Condition:
        """As it is now."""
        (job,) = self.namespace.get("jobs", "demo")
        return Condition(
            restarts={
                pod["metadata"]["uid"]: sum(
                    container_status["restartCount"]
                    for container_status in pod["status"].get("containerStatuses", ())
                )
                for pod in self.pods()
            },
            suspended=bool(job["spec"].get("suspend")),
            incidents=frozenset(entry["metadata"]["name"] for entry in faults_of(self.namespace)),
            shut=shut(self.namespace.cluster),
        )

    def wait_until_learned(self) -> None:
        """Wait until the agent of each of its nodes reports that its ranks train."""

        def has_learned() -> bool:
            wanted = {(pod["spec"]["nodeName"], pod["metadata"]["uid"]) for pod in self.pods()}
            reported = {
                (report["node"], pod["uid"])
                for report in (item["spec"] for item in self.namespace.items("faultreports"))
                if report.get("trained") and not report.get("suspicious")
                for pod in report.get("pods", ())
            }
            return len(wanted) == JOB.pods and wanted <= reported

        until(has_learned, "the agents report that the victim trains")

    def survives_a_hang(self) -> Recovery:
        """Stop one rank and wait until the job trains again."""
        self.wait_until_learned()
        known = self.condition().incidents
        pod = self.pods()[-1]
        began_s, hung_s = time.monotonic(), time.time()
        hang(pod)
        incident = until(lambda: self._over(known), "the incident of the victim's hang is over")
        took_s = time.monotonic() - began_s
        status = incident["status"]
        print(course(status["timeline"], hung_s))
        assert status["phase"] == "Recovered", status["timeline"]
        assert status["verdict"] == "HUNG", status
        assert status["culprit"]["pod"] == pod["metadata"]["name"]
        self._check_training()
        running_s = next(
            from_text(line["time"]) - hung_s
            for line in status["timeline"]
            if line["phase"] == "Recovering"
        )
        return Recovery(running_s, took_s)

    def _check_training(self) -> None:
        for pod in self.pods():
            name = pod["metadata"]["name"]
            self.namespace.wait(f"pod/{name}", "condition=Ready")
            self.namespace.wait_for_log(name, r"rank \d+ step 3$")
        left = stopped(self.pods())
        assert not left, [Path(f"/proc/{pid}/status").read_text()[:200] for pid in left]
        assert not self.condition().suspended

    def _over(self, known: frozenset[str]) -> dict[str, Any] | None:
        for entry in faults_of(self.namespace):
            is_new = entry["metadata"]["name"] not in known
            if is_new and entry.get("status", {}).get("phase") in OVER:
                return entry
        return None


@dataclass(frozen=True)
class Tenant:
    """A user with the ClusterRole `edit` in one namespace."""

    namespace: Namespace
    home: Namespace
    """Where its account is."""

    @property
    def user(self) -> str:
        """As impersonation names it."""
        return f"--as=system:serviceaccount:{self.home.name}:{ACCOUNT}"

    def ctl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """What kubectl prints to this user, in its namespace."""
        return self.namespace.ctl(self.user, *arguments, stdin=stdin, timeout_s=timeout_s)

    def create(self, *objects: dict[str, Any]) -> None:
        """Create objects."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.ctl("create", "--filename=-", stdin=text, timeout_s=300)

    def started_on(self, node: str, name: str, **options: Any) -> list[dict[str, Any]]:
        """A job of two sleeping pods on one node, once they run."""
        body = job(name, SLEEPS, 2, **options)
        body["spec"]["template"]["spec"]["nodeName"] = node
        self.create(body)
        selector = f"{JOB_NAME}={name}"
        for wait_for_pod in self.namespace.wait_for_pods(selector, 2):
            self.namespace.wait(f"pod/{wait_for_pod}", "condition=Ready")
        return self.namespace.pods(selector)

    def refusal(self, body: dict[str, Any]) -> str:
        """Why the API server does not take an object; empty where it does."""
        space = f"--namespace={self.namespace.name}"
        command = (self.user, "create", space, "--filename=-")
        done = self.namespace.cluster.run(*command, stdin=json.dumps(body))
        return done.stderr if done.returncode != 0 else ""


def arrive(namespace: Namespace, home: Namespace | None = None) -> Tenant:
    """Give a tenant with an account in `home` the ClusterRole edit here; None: make the account here too."""
    if home is None:
        namespace.ctl("create", "serviceaccount", ACCOUNT)
    home = home or namespace
    account = f"--serviceaccount={home.name}:{ACCOUNT}"
    namespace.ctl("create", "rolebinding", ACCOUNT, "--clusterrole=edit", account)
    return Tenant(namespace, home)


@dataclass(frozen=True)
class Stage:
    """All of it."""

    release: Release
    victim: Victim
    folder: Path
    """For kubeconfigs."""

    @property
    def cluster(self) -> Cluster:
        return self.release.cluster

    def agent_pod(self, node: str) -> str:
        """The name of the pod of an agent."""
        where = f"--field-selector=spec.nodeName={node}"
        label = "--selector=app.kubernetes.io/component=agent"
        space = f"--namespace={NAMESPACE}"

        def running_agent() -> str | None:
            for pod in self.cluster.get("pods", space, where, label):
                if "deletionTimestamp" not in pod["metadata"]:
                    return str(pod["metadata"]["name"])
            return None

        return until(running_agent, f"an agent's pod on {node}")

    def agent(self, node: str) -> ApiClient:
        """A session with the token that the agent of a node has."""
        pod = ("--bound-object-kind=Pod", f"--bound-object-name={self.agent_pod(node)}")
        return self._with_token("kcover-ebpf-agent", *pod)

    def controller(self) -> ApiClient:
        """A session with a token of the controller's account."""
        return self._with_token("kcover-ebpf-controller")

    def _with_token(self, account: str, *bound: str) -> ApiClient:
        return session_of(self.release, account, self.folder, *bound)

    def check_bounded(self) -> list[meters.Use]:
        """None of our pods was restarted or used more memory than it may; what they used."""
        uses = meters.our_pods(self.cluster)
        print(meters.said(uses))
        meters.check_bounded(uses)
        return uses


def course(timeline: Iterable[Mapping[str, str]], since_s: float) -> str:
    """What became of an incident, by seconds since a moment (unix seconds), for a log."""
    return "\n".join(
        f"{from_text(line['time']) - since_s:+7.2f} s {line['phase']}: {line.get('text', '')[:120]}"
        for line in timeline
    )


def shut(cluster: Cluster) -> frozenset[str]:
    """Nodes that accept no pods, for any reason."""
    cordoned = {
        node["metadata"]["name"]
        for node in cluster.get("nodes")
        if node["spec"].get("unschedulable")
    }
    return frozenset(cordoned | cordoned_nodes(cluster))
