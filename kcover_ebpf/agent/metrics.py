"""What the agent exports to Prometheus, beside what the sensor exports (docs/metrics.md)."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kcover_ebpf.agent.gpu_metrics import GpuMetrics
from kcover_ebpf.agent.inspection_metrics import InspectionMetrics
from kcover_ebpf.agent.reader_metrics import ReaderMetrics
from kcover_ebpf.api.fault_report import Ack, AckResult, FaultReport, ReportedDeviceFault
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.order import Verb
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ApiError, Unreachable
from kcover_ebpf.facts.devices import AerError, PortChange, XidReported
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.model.roles import Role
from kcover_ebpf.output.metrics import MetricsSink
from kcover_ebpf.output.over_bounds_metric import OverBounds
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
        self._sent = self._counter("kcover_reports", "Reports and Leases, by outcome.", "result")
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
        self._sent_before: Tally[str] = Tally()
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
            self._sent.labels(result).inc(count - self._sent_before[result])
        self._sent_before = Tally(sent)
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
        self._read = Counter(
            "kcover_log_read_bytes", "Bytes of containers' logs that were read.", registry=registry
        )
        self._skipped = Counter(
            "kcover_log_skipped_bytes",
            "Bytes of containers' logs that were skipped because the log grew faster than the read limit.",
            registry=registry,
        )
        self._before = (0, 0)
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
        self._read.inc(read_bytes - self._before[0])
        self._skipped.inc(skipped_bytes - self._before[1])
        self._before = (read_bytes, skipped_bytes)
