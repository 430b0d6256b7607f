"""An agent without a sensor: reports that a test makes up, orders that are really carried out.

The nodes of the test bed share the host's process numbers, so one fake serves both.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from kcover_ebpf.api import fault_report, order
from kcover_ebpf.api.fault_report import Ack, AckResult, FaultReport, PodRef, ReportedJob
from kcover_ebpf.api.job_kinds import selects
from kcover_ebpf.api.order import Verb
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.errors import ApiError
from kcover_ebpf.ids import Pid
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)

_PERIOD_S = 0.1
_SIGNALS = {
    Verb.STOP: signal.SIGSTOP,
    Verb.RESUME: signal.SIGCONT,
    Verb.KILL: signal.SIGKILL,
    Verb.KILL_TERMINATING: signal.SIGKILL,
}


def processes(uid: str) -> list[int]:
    """Processes of a pod's containers, without the one that holds its namespaces."""
    found = []
    names = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            cgroup = (entry / "cgroup").read_text()
            if any(name in cgroup for name in names) and not _holds_namespaces(entry):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _holds_namespaces(process: Path) -> bool:
    """True for the program of a pod's sandbox; in the test bed every image with one program calls it manager."""
    return (process / "comm").read_text() in ("pause\n", "manager\n")


def is_first(pid: int) -> bool:
    """True for PID 1 of its container."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1] == "1"
    except OSError:
        pass
    return False


class FakeAgent:
    """The agents of all nodes, for one gang."""

    def __init__(
        self, client: ApiClient, namespace: str, selector: Mapping[str, str], kind: str
    ) -> None:
        self._session, self._namespace = client, namespace
        self._selector, self._kind = dict(selector), kind
        self._acks: dict[str, list[Ack]] = {}
        self._sequence = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.fault: str | None = None
        """Name of the pod whose rank is reported as stopped; None: all is well."""
        self.device: str | None = None
        """The device of that pod that is reported as lost, in place of a rank that is stopped."""
        self.deaf: set[str] = set()
        """Nodes that carry out no order."""
        self.silent: set[str] = set()
        """Nodes that report nothing."""
        self._since_s = time.time()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def break_rank(self, pod: str) -> None:
        """Report a stopped rank from now on, until its pod is another one or was restarted."""
        self._since_s = time.time()
        self.fault = pod

    def break_device(self, pod: str, device: str) -> None:
        """Report a fatal fault of a device of a pod from now on; the node's other jobs have none of it."""
        self.device = device
        self.break_rank(pod)

    def pods(self) -> list[dict[str, Any]]:
        """The gang's pods."""
        items = self._session.list(f"/api/v1/namespaces/{self._namespace}/pods").get("items") or []
        return [item for item in items if selects(self._selector, pod_of(item))]

    def _run(self) -> None:
        reported_s = 0.0
        while not self._stop.wait(_PERIOD_S):
            try:
                obeyed = self._obey()
                if obeyed or time.time() - reported_s > 1.0:
                    self._report()
                    reported_s = time.time()
            except ApiError:
                continue

    def _obey(self) -> bool:
        path = f"/apis/kcover.io/v1alpha1/namespaces/{self._namespace}/incidents"
        any_new = False
        for raw in self._session.list(path).get("items") or ():
            reported = order.incident_of(raw)
            wanted = reported.order
            if wanted is None or reported.phase != "ShuttingDown" or time.time() > wanted.expires_s:
                continue
            if dict(wanted.selector) != self._selector:
                continue
            by_node: dict[str, list[dict[str, Any]]] = {}
            for pod in self.pods():
                if pod_of(pod).created_s <= wanted.created_before_s:
                    by_node.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
            for node, pods in by_node.items():
                acks = self._acks.setdefault(node, [])
                if node in self.deaf or any(ack.order == wanted.id for ack in acks):
                    continue
                count = sum(self._carry_out(wanted.verb, pod) for pod in pods)
                going = [
                    pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" in pod["metadata"]
                ]
                killed = tuple(going) if wanted.verb is Verb.KILL_TERMINATING else ()
                acks.append(Ack(wanted.id, wanted.verb, AckResult.DONE, count, pods=killed))
                any_new = True
        return any_new

    def _carry_out(self, verb: Verb, pod: dict[str, Any]) -> int:
        if verb is Verb.KILL_TERMINATING and "deletionTimestamp" not in pod["metadata"]:
            return 0
        if verb not in _SIGNALS:
            return 0  # it knows no ranks, and keeps no evidence
        is_kill = _SIGNALS[verb] is signal.SIGKILL
        count = 0
        for pid in processes(pod["metadata"]["uid"]):
            if not is_kill or is_first(pid):
                try:
                    os.kill(pid, _SIGNALS[verb])
                    count += 1
                except ProcessLookupError:
                    continue
        return count

    def _report(self) -> None:
        by_node: dict[str, list[dict[str, Any]]] = {}
        for pod in self.pods():
            if pod["spec"].get("nodeName"):
                by_node.setdefault(pod["spec"]["nodeName"], []).append(pod)
        for node, pods in by_node.items():
            if node not in self.silent:
                self._report_of(node, pods)

    def _report_of(self, node: str, pods: list[dict[str, Any]]) -> None:
        self._sequence += 1
        broken = self.fault is not None
        hangs = broken and self.device is None
        ranks = tuple(self._rank(pod, index) for index, pod in enumerate(pods)) if hangs else ()
        refs = tuple(PodRef(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods)
        said = FaultReport(
            node=node,
            time_s=time.time(),
            sequence=self._sequence,
            agent="fake",
            job=ReportedJob("x", self._selector, self._kind),
            pods=refs,
            suspicious=broken,
            verdict=self._of_device(node, pods),
            trained=all(pod.get("status", {}).get("phase") == "Running" for pod in pods),
            ranks=ranks,
            acks=tuple(self._acks.get(node, [])[-8:]),
        )
        digest = hashlib.sha256(str(sorted(self._selector.items())).encode()).hexdigest()[:6]
        name = f"fake-{digest}.{node}"
        body = fault_report.object_of(said, self._namespace, name)
        path = f"/apis/kcover.io/v1alpha1/namespaces/{self._namespace}/faultreports/{name}"
        self._session.apply(path, body, "kcover-agent")

    def _of_device(self, node: str, pods: list[dict[str, Any]]) -> Verdict | None:
        here = [pod for pod in pods if pod["metadata"]["name"] == self.fault]
        if self.device is None or not here or not self._is_on_it(here[0]):
            return None
        metadata = here[0]["metadata"]
        return Verdict(
            kind=VerdictKind.DEVICE_FAULT,
            cause=Cause.DEVICE,
            since_s=self._since_s,
            culprit=Culprit(
                pod=metadata["name"], pod_uid=metadata["uid"], node=node, device=self.device
            ),
            evidence=(Evidence(EvidenceKind.EVENT, f"{self.device}: Xid 79, off the bus"),),
            certainty=Certainty.ANNOUNCED,
        )

    def _is_on_it(self, pod: dict[str, Any]) -> bool:
        """A pod that came later has another device."""
        return (
            pod_of(pod).created_s < self._since_s - 1 and "deletionTimestamp" not in pod["metadata"]
        )

    def _rank(self, pod: dict[str, Any], index: int) -> RankSnapshot:
        culprit = pod["metadata"]["name"] == self.fault
        age_s = time.time() - self._since_s
        return RankSnapshot(
            pod_uid=pod["metadata"]["uid"],
            pid=Pid(1000 + index),
            role=Role.RANK,
            state=State.STOPPED if culprit else State.PEERS,
            tid=1000 + index,
            rank=index,
            text="stopped by SIGSTOP" if culprit else "poll",
            age_s=age_s,
            threshold_s=2.0,
            sent_age_s=age_s,
            received_age_s=age_s,
        )
