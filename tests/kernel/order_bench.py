"""An executor of orders over real processes in groups laid out as a kubelet does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kcover_ebpf.agent.containers import Containers
from kcover_ebpf.agent.orders.evidence_thread import BundleWriter, EvidenceRequest
from kcover_ebpf.agent.orders.order_executor import OrderExecutor
from kcover_ebpf.agent.orders.order_journal import OrderJournal
from kcover_ebpf.agent.orders.order_listeners import Listeners
from kcover_ebpf.agent.orders.resumer import Resumer
from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.api.fault_report import Ack
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.order import Order, OrderedIncident, Verb
from kcover_ebpf.api.rfc3339 import from_text

from .pods import LABEL, NODE, FakePod

NOW_S = from_text("2026-01-01T01:00:00Z")


@dataclass
class Bench:
    """An executor over pods that a test makes, with a clock that it turns."""

    root: Path
    folder: Path
    now_s: float = NOW_S
    acks: list[Ack] = field(default_factory=list)
    killed: list[Gang] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    """States of all processes when it was written."""
    requests: list[EvidenceRequest] = field(default_factory=list)
    pods: list[FakePod] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.resumer = Resumer()
        self.registry = PodRegistry(NODE)
        self.executor = self.new_executor()

    def new_executor(self) -> OrderExecutor:
        """As after a restart of the agent: only the disk remembers."""

        def keep(request: EvidenceRequest) -> BundleWriter:
            self.requests.append(request)
            states = "".join(pod.states() for pod in self.pods)
            return BundleWriter("/bundle", lambda: self.evidence.append(states))

        listeners = Listeners(
            acked=lambda _, ack: self.acks.append(ack),
            killed=self.killed.append,
            evidence=keep,
            before_stop=lambda _: None,
            passed_over=self.said.append,
            ranks=lambda _: self.ranks,
        )
        return OrderExecutor(
            self.registry,
            Containers([self.root]),
            OrderJournal(self.folder / "orders.json"),
            listeners,
            self.resumer,
            lambda: self.now_s,
        )

    def pod(self, name: str, job: str = "train", containers: Sequence[str] = ("main",)) -> FakePod:
        pod = FakePod(self.root, name, job)
        for container in containers:
            pod.add(container)
        self.pods.append(pod)
        self.registry.on_pod(pod.event())
        return pod

    def order(self, verb: Verb, number: str = "1", **other: object) -> Ack | None:
        """Give an order; the ack, if there was one."""
        order = Order(number, verb, {LABEL: "train"}, self.now_s, self.now_s + 10)
        fields: dict[str, object] = {"phase": "ShuttingDown", "namespace": "team", **other}
        for key in [key for key in fields if key in Order.__dataclass_fields__]:
            order = replace(order, **{key: fields.pop(key)})  # type: ignore[arg-type]
        incident = OrderedIncident(
            str(fields["namespace"]), "i", str(fields.get("uid", "u1")), str(fields["phase"]), order
        )
        before = len(self.acks)
        self.executor.obey(incident)
        self.executor.repeat()
        return self.acks[-1] if len(self.acks) > before else None


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
