"""What the agent exports to Prometheus, in addition to what the sensor exports (docs/metrics.md)."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, Histogram

from kcover_ebpf.agent.gpu_metrics import GpuMetrics
from kcover_ebpf.api.fault_report import Ack, AckResult, FaultReport, ReportedDeviceFault
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.api.order import Verb
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ApiError, Unreachable
from kcover_ebpf.facts.devices import AerError, PortChange, XidReported
from kcover_ebpf.facts.health import Result
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.model.roles import Role
from kcover_ebpf.output.metrics import MetricsSink, OverBounds, TotalCounter
from kcover_ebpf.tunables.agent import LAG_BUCKETS_S

if TYPE_CHECKING:
    from kcover_ebpf.kernel.probes import ProbeStatus

_REQUESTS = (
    ("watch", "pods"),
    ("watch", "incidents"),
    ("watch", "faultpolicies"),
    ("apply", "faultreports"),
    ("apply", "nodehealths"),
    ("delete", "faultreports"),
)
_WENT_DOWN = "Times a port, or a link backed by a device, went down."
_MOST_AGES = 1024
"""Series of ages: two for each rank of the largest nodes. Beyond, those that have waited longest are kept."""
_SKIPPED = (
    "Bytes of containers' logs that were skipped because the log grew faster than the read limit."
)
_READER_ENDS = (
    "Times a process that reads what tenants wrote crashed, or was ended because it did not answer."
)
_POD_LABELS = ("namespace", "pod")
_PROGRESS = {
    "step": "Last step that the container's log prints.",
    "loss": "Last finite loss that the container's log prints.",
    "unsaved_steps": "Steps since the last checkpoint that the container's log says is complete.",
    "redone_steps": "Steps of the start before that the container's present start does again.",
}
_AGE_LABELS = ("namespace", "training_job", "rank", "pod")


def _lag_histogram(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "kcover_loop_lag_seconds",
        "From when a pass over the node was due until it was over.",
        buckets=LAG_BUCKETS_S,
        registry=registry,
    )


class AgentMetrics(MetricsSink):
    """All series of one agent. A sink of every gang: verdicts add up over gangs."""

    wants_waits = False

    def __init__(
        self,
        read_probes: Callable[[], Iterable[ProbeStatus]],
        read_lost: Callable[[], Mapping[str, int]],
    ) -> None:
        super().__init__(read_probes, read_lost, age_labels=_AGE_LABELS)
        self._pods = self._gauge("kcover_watched_pods", "Pods watched on this node.")
        self._lag = _lag_histogram(self.registry)
        self._gangs = self._gauge("kcover_watched_jobs", "Jobs with pods watched on this node.")
        text = "Reports and Leases, by outcome."
        self._sent = TotalCounter("kcover_reports", text, self.registry, "result")
        self._spooled = self._gauge(
            "kcover_reports_spooled", "Reports with changes not yet accepted by the API server."
        )
        self._errors = self._counter(
            "kcover_api_errors", "Failed requests to the API server.", "verb", "resource", "kind"
        )
        for verb, resource in _REQUESTS:
            self._errors.labels(verb, resource, Unreachable.__name__)
        self._orders = self._counter(
            "kcover_orders", "Orders from the controller, by verb and result.", "verb", "result"
        )
        for order, result in product(Verb, AckResult):
            self._orders.labels(order.value, result.value)
        self._faults = self._gauge(
            "kcover_device_fault",
            "1 while a reported device fault has not been cleared; fatal: it ends jobs, or makes the device unusable.",
            *("device", "fault", "fatal"),
        )
        self._xids = self._counter("kcover_xid", "Xids and SXids reported.", "device", "xid")
        self._aer = self._counter(
            "kcover_pcie_aer", "PCIe errors reported (AER).", "device", "severity", "error"
        )
        self._down = self._counter("kcover_port_down", _WENT_DOWN, "device", "port")
        self.inspection = InspectionMetrics(self.registry)
        self.gpus = GpuMetrics()
        self.registry.register(self.gpus)
        self.registry.register(OverBounds())
        self.logs = LogMetrics(self.registry)
        self.readers = ReaderMetrics(self.registry)

    def on_lag(self, lag_s: float) -> None:
        """The loop was busy for so long when it should have listened."""
        self._lag.observe(lag_s)

    def on_pass(
        self, gangs: Mapping[Gang, FaultReport], pod_count: int, waiting: int, sent: Tally[str]
    ) -> None:
        """The state after a pass."""
        self._read_kernel()
        self._pods.set(pod_count)
        self._gangs.set(len(gangs))
        self._spooled.set(waiting)
        for result, count in sent.items():
            self._sent.take(count, result)
        self._ages.clear()
        ages: dict[tuple[str, ...], float] = {}
        for gang, report in gangs.items():
            for labels, age_s in _ages_of(gang, report):
                ages[labels] = max(age_s, ages.get(labels, 0.0))
        for labels in sorted(ages, key=lambda age: -ages[age])[:_MOST_AGES]:
            self._ages.labels(*labels).set(ages[labels])

    def on_devices(self, faults: Iterable[ReportedDeviceFault]) -> None:
        """The faults that are not cleared."""
        self._faults.clear()
        for fault in faults:
            lasting = fault.fatal or fault.unfit
            self._faults.labels(fault.device, fault.fault, str(lasting).lower()).set(1)

    def on_node_fact(self, fact: Fact) -> None:
        """Count what devices say."""
        match fact:
            case XidReported():
                self._xids.labels(fact.device, str(fact.number)).inc()
            case AerError():
                for error in fact.errors or ("unknown",):
                    severity = fact.severity.name.lower()
                    self._aer.labels(fact.device, severity, error).inc(fact.count)
            case PortChange() if not fact.up and (fact.device or fact.is_rdma):
                # those of pods and tunnels come and go, and each would leave a series for ever
                self._down.labels(fact.device, fact.port).inc()
            case _:
                pass

    def on_error(self, verb: str, resource: str, error: ApiError) -> None:
        """Count a request that failed."""
        self._errors.labels(verb, resource, type(error).__name__).inc()

    def on_order(self, gang: Gang, ack: Ack) -> None:  # noqa: ARG002
        """Count an order."""
        self._orders.labels(ack.verb.value, ack.result.value).inc()


def _ages_of(gang: Gang, report: FaultReport) -> Iterator[tuple[tuple[str, ...], float]]:
    names = {pod.uid: pod.name for pod in report.pods}
    for rank_snapshot in report.ranks:
        if rank_snapshot.role is Role.RANK and rank_snapshot.exit is None:
            # a pid would be another series with each start
            rank = "" if rank_snapshot.rank is None else str(rank_snapshot.rank)
            yield (
                (gang.namespace, gang.name, rank, names.get(rank_snapshot.pod_uid, "")),
                rank_snapshot.age_s,
            )


class LogMetrics:
    """What was read of containers' logs, what was not, and how far the trainings have come by them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Bytes of containers' logs that were read."
        self._read = TotalCounter("kcover_log_read_bytes", text, registry)
        self._skipped = TotalCounter("kcover_log_skipped_bytes", _SKIPPED, registry)
        self._progress = {
            name: Gauge(f"kcover_log_{name}", text, _POD_LABELS, registry=registry)
            for name, text in _PROGRESS.items()
        }

    def on_progress(
        self,
        pods: Iterable[Pod],
        logs: Callable[[Iterable[str], float], Iterable[ContainerLog]],
    ) -> None:
        """How far the trainings in these pods have come; those that print no step have no series."""
        for gauge in self._progress.values():
            gauge.clear()
        by_uid = {pod.uid: pod for pod in pods}
        for log in logs(by_uid, time.time()):
            if log.progress is None:
                continue
            pod = by_uid[log.pod_uid]
            for name, gauge in self._progress.items():
                value: float | None = getattr(log.progress, name)
                if value is not None:
                    gauge.labels(pod.namespace, pod.name).set(value)

    def update(self, read_bytes: int, skipped_bytes: int) -> None:
        """The sums now."""
        self._read.take(read_bytes)
        self._skipped.take(skipped_bytes)


class InspectionMetrics:
    """Series of the last inspection; those of checks that are no longer run go with them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._results = Gauge(
            "kcover_inspection_result",
            "1 for the result of each check in the last inspection of the node, 0 for its other results.",
            ["check", "result"],
            registry=registry,
        )
        self._age = Gauge(
            "kcover_inspection_age_seconds",
            "Seconds since the last inspection of the node ended; -1 before the first one.",
            registry=registry,
        )
        self._expiry = Gauge(
            "kcover_inspection_expiry_seconds",
            "Age beyond which the health of the node is unknown; 0 where it is not inspected.",
            registry=registry,
        )
        self._clean_rounds = Gauge(
            "kcover_inspection_clean_rounds",
            "Consecutive inspections in which nothing failed and every earlier failure has since been seen working.",
            registry=registry,
        )
        text = "CPU time used by inspections of the node."
        self._cpu = TotalCounter("kcover_inspection_cpu_seconds", text, registry)
        self._health: NodeHealth | None = None
        self._age.set(-1.0)

    def update(self, health: NodeHealth | None, ended_s: float | None, cpu_s: float) -> None:
        """The state now; `ended_s` by CLOCK_MONOTONIC, None before the first inspection of this agent."""
        if ended_s is None:
            return
        self._age.set(time.monotonic() - ended_s)
        self._cpu.take(cpu_s)
        if health is None or health is self._health:
            return
        self._health = health
        self._results.clear()
        for check in health.checks:
            for result in Result:
                self._results.labels(check.name, result.value).set(check.result is result)
        self._expiry.set(health.expires_after_s)
        self._clean_rounds.set(health.clean_rounds)


class ReaderMetrics:
    """Whether the processes that read what tenants wrote live, and are confined."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ends = TotalCounter("kcover_reader_ends", _READER_ENDS, registry, "reader")
        self._left = Gauge(
            "kcover_helpers_left_behind",
            "Helper processes that were killed and have not ended: they hang in the kernel.",
            registry=registry,
        )
        self._guard = Gauge(
            "kcover_device_guard",
            "1 if the kernel refuses device nodes to the processes that read what tenants wrote.",
            registry=registry,
        )

    def begin(self, names: Iterable[str], *, refuses_devices: bool) -> None:
        """The readers there are."""
        for name in names:
            self._ends.labels(name)
        self._guard.set(int(refuses_devices))

    def update(self, ends: Mapping[str, int], left_behind: int) -> None:
        """The sums now."""
        for name, count in ends.items():
            self._ends.take(count, name)
        self._left.set(left_behind)
