"""Receivers of what the loop observes: reports, metrics and the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kcover_ebpf.agent.node_health.device_faults import NodeDeviceFaults, devices_of
from kcover_ebpf.agent.node_health.gpu_pods import GpuPods
from kcover_ebpf.agent.node_loop import GangWatch
from kcover_ebpf.agent.over_pods import OverPods
from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.agent.reports.report_builder import ReportBuilder
from kcover_ebpf.api.fault_report import Ack
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.confined.helper import left_behind
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.errors import ApiError
from kcover_ebpf.facts.devices import AnnouncedFault
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Verdict, WaitRow
from kcover_ebpf.output.formatting import headline
from kcover_ebpf.output.log_lines import about
from kcover_ebpf.tunables.agent import DEVICES_READ_NS
from kcover_ebpf.watching.judging import ObservationSink

if TYPE_CHECKING:
    from kcover_ebpf.agent.log_watch import LogWatch
    from kcover_ebpf.agent.metrics import AgentMetrics
    from kcover_ebpf.agent.node_health.inspector import Inspector
    from kcover_ebpf.agent.reader.started import ConfinedReaders
    from kcover_ebpf.devices.telemetry.watch import Telemetry
    from kcover_ebpf.devices.watch import DeviceWatch

_LOG = logging.getLogger(__name__)


class NodeOutputs:
    """The loop's `PassListener`, and each gang's sink that logs."""

    def __init__(
        self,
        builder: ReportBuilder,
        registry: PodRegistry,
        device_faults: NodeDeviceFaults,
        devices: DeviceWatch,
        over: OverPods,
    ) -> None:
        self._builder, self._registry, self._device_faults = builder, registry, device_faults
        self._devices, self._over = devices, over
        self._gpu_pods = GpuPods(registry)
        self._telemetry: Telemetry | None = None
        self.metrics: AgentMetrics | None = None
        """None if no metrics are wanted; otherwise set before the loop starts."""
        self.inspector: Inspector | None = None
        """None if the node is not inspected; otherwise set before the loop starts."""
        self.logs: LogWatch | None = None
        self.readers: ConfinedReaders | None = None
        """None if container logs are not read; otherwise set before the loop starts."""
        self._device_faults_version = -1
        self._next_devices_ns = 0

    def sinks(self, gang: Gang) -> Sequence[ObservationSink]:
        """Receivers of the verdicts on a gang."""
        logged = _LogSink(gang)
        return (logged,) if self.metrics is None else (logged, self.metrics)

    def on_node_fact(self, fact: Fact) -> None:
        """Take a fact that may be about a device."""
        self._device_faults.observe(fact)
        if self.metrics is not None:
            self.metrics.on_node_fact(fact)

    def on_lag(self, lag_s: float) -> None:
        """Take the time from when a pass was due until it was over."""
        if self.metrics is not None:
            self.metrics.on_lag(lag_s)

    def on_announced(self, fault: AnnouncedFault, pods: frozenset[str]) -> None:
        """Take a fault of a device; `pods`: uids of the pods that it affects."""
        self._device_faults.add(fault, pods)

    def on_pass(self, gangs: Iterable[GangWatch]) -> None:
        """Update all reports and gauges."""
        watched = list(gangs)
        now_ns = procfs.boottime_ns()
        self._read_devices(watched, now_ns)
        self._device_faults.on_pass(now_ns)
        self._exchange(now_ns)
        faults = self._device_faults.reported(now_ns)
        skipped = self.logs.taken_skipped() if self.logs is not None else ()
        self._builder.over = self._over.update(watched, skipped, now_ns)
        self._builder.make(watched, faults)
        if self.logs is not None:
            self.logs.follow(
                (pod for watch in watched for pod in watch.here.pods),
                {pod.uid: watch.here.job_rules for watch in watched for pod in watch.here.pods},
                is_reported=self._builder.reports_logs,
            )
        self._follow_gpus()
        if self.metrics is None:
            return
        reporter = self._builder.reporter
        self.metrics.on_pass(
            self._builder.last, self._registry.pod_count, reporter.waiting, reporter.counts
        )
        if self.inspector is not None:
            inspector = self.inspector
            self.metrics.inspection.update(
                inspector.latest_health, inspector.ended_s, inspector.cpu_s
            )
        if self.readers is not None:
            self.metrics.readers.update(self.readers.ends, left_behind.count())
        if self.logs is not None:
            self.metrics.logs.update(self.logs.read_bytes, self.logs.skipped_bytes)
            pods = [pod for watch in watched for pod in watch.here.pods]
            self.metrics.logs.on_progress(pods, self.logs.of_pods)
        if self._device_faults.version != self._device_faults_version:
            self._device_faults_version = self._device_faults.version
            self.metrics.on_devices(self._device_faults.reported(now_ns))

    def _follow_gpus(self) -> None:
        telemetry = self._devices.telemetry
        if telemetry is None or telemetry.latest is self._telemetry:
            return
        self._telemetry = telemetry.latest
        readings = [gpu.reading for gpu in self._telemetry.gpus]
        pods = self._gpu_pods.of(readings, self._builder.devices)
        if self.metrics is not None:
            self.metrics.gpus.latest = lambda: telemetry.latest
            self.metrics.gpus.pods = pods

    def _exchange(self, now_ns: int) -> None:
        """Pass announced faults to the inspector, and clear those that it saw repaired."""
        if self.inspector is None:
            return
        offset_s = procfs.unix_offset_s()
        faults = self._device_faults.reported(now_ns)
        for device, until_s in self.inspector.exchange(faults).items():
            self._device_faults.mend(device, int((until_s - offset_s) * NS))

    def _read_devices(self, watched: Sequence[GangWatch], now_ns: int) -> None:
        if now_ns < self._next_devices_ns:
            return
        self._next_devices_ns = now_ns + DEVICES_READ_NS
        living = {pid: watch.pods[pid] for watch in watched for pid in watch.watch.members}
        self._builder.devices = devices_of(
            self._devices.topology, living, self._devices.users.open_files
        )

    def on_order(self, gang: Gang, ack: Ack) -> None:
        """Count an order that was carried out; called in the order thread."""
        if self.metrics is not None:
            self.metrics.on_order(gang, ack)

    def on_error(self, verb: str, resource: str, error: ApiError) -> None:
        """Count and log a failed request; called in the thread that made it."""
        if self.metrics is not None:
            self.metrics.on_error(verb, resource, error)


class _LogSink:
    """Writes verdicts on one gang to the log."""

    def __init__(self, gang: Gang) -> None:
        self._name = f"{gang.namespace}/{gang.name}"

    def on_fact(self, fact: Fact) -> None:
        """Log nothing: the verdict contains what matters."""

    def on_verdict(self, verdict: Verdict) -> None:
        """Log a verdict, in one line."""
        _LOG.info("%s: %s", self._name, headline(verdict))

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """Log nothing: a table of waits is too long for a log."""

    def on_blind(self, reason: str) -> None:
        """Log nothing: it is the same for all gangs, and logged once."""
        _LOG.warning("cannot judge for now: %s", reason, extra=about("blind"))

    def on_action(self, decision: Decision, text: str) -> None:
        """Log nothing: an agent takes no actions on its own."""
