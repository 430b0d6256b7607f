"""Starts the parts of the agent in the required order, and ends them in reverse order.

The port is bound and the configuration read before BPF is loaded, so that a mistake costs nothing. Privileges are
dropped before the first thread starts, because they belong to threads. Orders still in force from an earlier agent,
above all stops, are dealt with before the API server is watched.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcover_ebpf import __version__
from kcover_ebpf.agent import health
from kcover_ebpf.agent.containers import Containers
from kcover_ebpf.agent.drill import finish_left
from kcover_ebpf.agent.drill_note import DrillNote
from kcover_ebpf.agent.informers import Informers
from kcover_ebpf.agent.job_memories import JobMemories
from kcover_ebpf.agent.node_health.device_faults import NodeDeviceFaults
from kcover_ebpf.agent.node_health.inspector import Inspector, InspectorOptions
from kcover_ebpf.agent.node_loop import NodeLoop
from kcover_ebpf.agent.orders import order_executor
from kcover_ebpf.agent.orders.bundles import Bundles, GangReports
from kcover_ebpf.agent.orders.optional_evidence import OptionalEvidence
from kcover_ebpf.agent.orders.order_journal import OrderJournal
from kcover_ebpf.agent.orders.order_listeners import Listeners
from kcover_ebpf.agent.orders.resumer import Resumer
from kcover_ebpf.agent.outputs import NodeOutputs
from kcover_ebpf.agent.over_pods import OverPods
from kcover_ebpf.agent.pod_registry import PodRegistry, report_name
from kcover_ebpf.agent.reader.logs import LogPlan
from kcover_ebpf.agent.reader.started import ConfinedReaders
from kcover_ebpf.agent.reports.lease_writer import LeaseWriter
from kcover_ebpf.agent.reports.report_builder import Identity, ReportBuilder
from kcover_ebpf.agent.reports.report_cache import ReportCache
from kcover_ebpf.agent.reports.report_sender import ReportSender
from kcover_ebpf.api.fault_report import Ack, FaultReport, PodRef
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import capabilities, cgroups
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.inspection.round import RoundOptions
from kcover_ebpf.kernel import features
from kcover_ebpf.kube.client import connect
from kcover_ebpf.model.roles import Role
from kcover_ebpf.output.log_lines import about
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.agent import (
    LATE_PERIODS,
    LOOP_SILENT_S,
    ORDERS_SILENT_S,
    REPORTS_SILENT_S,
)
from kcover_ebpf.watching import start
from kcover_ebpf.watching.start import FactSources

if TYPE_CHECKING:
    from kcover_ebpf.api.job_kinds import Gang
    from kcover_ebpf.devices.telemetry.watch import TelemetryOptions
    from kcover_ebpf.kernel.sampler import KernelSampler
    from kcover_ebpf.kube.client import ApiClient
    from kcover_ebpf.output.metrics import MetricsServer

_LOG = logging.getLogger(__name__)

_KEPT = capabilities.KEPT - {Capability.SETGID, Capability.SETUID}


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Settings of `kcover-ebpf agent`, from its arguments and environment."""

    node: str
    namespace: str
    """Namespace of the agent; its report about the node and its Lease are written there."""
    state_dir: Path
    kubeconfig: str | None = None
    context: str | None = None
    pod: PodRef | None = None
    """Pod in which the agent runs; None outside of a cluster."""
    metrics: str | None = None
    catalog: Path | None = None
    inspect_every_s: float = 600.0
    """Seconds between inspections of the node; 0: none."""
    telemetry: TelemetryOptions | None = None
    """How GPUs are read; None: they are not."""
    believes_bandwidth: bool = False
    """True: what a job's own bandwidth check reports about its node counts as a fault of the node."""
    inspect: RoundOptions = field(default_factory=RoundOptions)
    pod_logs: Path | None = None
    """Folder of container logs (/var/log/pods); None: container logs are not read."""
    log_rules: Path | None = None
    """File with the operator's rules for log lines; None: only the rules of the package."""
    gpu_core_dumps: bool = False
    """True: ranks that have a pipe for it are asked for GPU core dumps, of which only kernel names are kept."""
    kubelet: str = ""
    """Address of the kubelet, which is asked for checkpoints of pods that want them. Empty: no checkpoints."""
    settings: Settings = field(default_factory=Settings)


def _warn(text: str) -> None:
    _LOG.warning(text, extra=about(text))


def _optional_evidence(options: AgentOptions, client: ApiClient) -> OptionalEvidence:
    checkpoint = client.kubelet(options.kubelet).checkpoint if options.kubelet else None
    return OptionalEvidence(gpu_core_dumps=options.gpu_core_dumps, checkpoint=checkpoint)


def run_agent(options: AgentOptions) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    features.require_privileges()
    with contextlib.ExitStack() as stack:
        return _Agent(options, stack).run()


class _Agent:
    def __init__(self, options: AgentOptions, stack: contextlib.ExitStack) -> None:
        self._plan, self._stack = options, stack
        self._ending = threading.Event()
        self._inspection_thread: threading.Thread | None = None
        self._log_thread: threading.Thread | None = None
        self._passed_s = time.monotonic()

    def run(self) -> int:
        plan = self._plan
        server = start.bind_metrics(plan.metrics, self._stack)
        journal = OrderJournal(plan.state_dir / "orders.json")
        if (pid := finish_left(plan.state_dir)) is not None:
            _LOG.warning("a drill had left process %d stopped or slowed; it was resumed", pid)
        session = connect(plan.kubeconfig, plan.context, is_small=True)
        containers = Containers()
        self._resumer = self._start_resumer()
        self._readers = self._make_readers(containers)
        sources = self._open_sources()
        kernel, devices = sources.kernel, sources.devices
        start.drop_privileges(_KEPT, plan.settings)
        start.catch_ending(self._ending.set)
        registry = PodRegistry(plan.node, _warn)
        self._readers.start(devices.nccl, devices.users.open_files)
        self._optional = _optional_evidence(plan, session)
        self._executor = executor = self._make_executor(registry, containers, journal)
        self._reporter = reporter = self._make_reporter(session)
        memories = JobMemories(plan.state_dir / "jobs.json")
        self._informers = informers = self._make_informers(session, registry, memories)
        self._builder = builder = self._make_builder(reporter, informers)
        over = OverPods(lambda: kernel.lost_counts, kernel.full_owners)
        self._outputs = NodeOutputs(builder, registry, self._device_faults, devices, over)
        self._loop = self._make_loop(sources, registry, containers, memories)
        self._order_thread, self._report_thread = self._start(executor), self._start(reporter)
        self._inspect(session, registry)
        self._read_logs()
        informers.start()
        if server is not None:
            self._serve(server, sources, informers)
        _LOG.info(self._greeting(kernel, session.host))
        self._loop.run(self._is_over)
        memories.save(time.monotonic(), at_once=True)
        _LOG.info("stopping")
        return 0

    def _make_loop(
        self,
        sources: FactSources,
        registry: PodRegistry,
        containers: Containers,
        memories: JobMemories,
    ) -> NodeLoop:
        return NodeLoop(
            sources.kernel,
            sources.devices,
            registry,
            containers,
            self._plan.settings,
            self._outputs,
            is_stopped_by_us=self._executor.is_stopped_by_us,
            memories=memories,
            sinks=self._outputs.sinks,
            sources=self._readers.sources,
            drilled=DrillNote(self._plan.state_dir).take,
        )

    def _start(self, work: Any) -> threading.Thread:
        thread = threading.Thread(target=work.run, name=type(work).__name__, daemon=True)
        thread.start()
        self._stack.callback(thread.join, 2.0)
        self._stack.callback(work.close)
        return thread

    def _is_over(self) -> bool:
        self._passed_s = time.monotonic()
        return self._ending.is_set()

    def _open_sources(self) -> FactSources:
        plan = self._plan
        sources = start.open_sources(plan.settings, plan.catalog, plan.telemetry, self._stack)
        devices = sources.devices
        self._device_faults = NodeDeviceFaults(devices.used, devices.identities.of)
        return sources

    def _make_reporter(self, client: ApiClient) -> ReportSender:
        late_s = LATE_PERIODS * self._plan.settings.period_s
        plan = self._plan
        lease = LeaseWriter(client, plan.namespace, plan.node, self._on_error, plan.pod)
        return ReportSender(client, lease, self._acks, self._on_error, late_s)

    def _inspect(self, client: ApiClient, registry: PodRegistry) -> None:
        plan = self._plan
        if plan.inspect_every_s <= 0:
            return
        options = InspectorOptions(
            plan.node, plan.inspect_every_s, plan.state_dir / "health.json", plan.inspect
        )
        inspector = self._outputs.inspector = Inspector(
            client, options, self._on_error, registry.pod
        )
        self._builder.health = lambda: inspector.latest_health
        self._inspection_thread = self._start(inspector)

    def _start_resumer(self) -> Resumer:
        resumer = Resumer()
        # before it could be killed for memory
        resumer.start()
        self._stack.callback(resumer.close)
        return resumer

    def _make_readers(self, containers: Containers) -> ConfinedReaders:
        plan = self._plan
        logs = None
        if plan.pod_logs:
            longest_s = plan.settings.longest_phase_s
            logs = LogPlan(plan.pod_logs, plan.log_rules, longest_s)
        own = [container.path for container in containers.of_pod(plan.pod.uid)] if plan.pod else []
        readers = ConfinedReaders(logs, (*cgroups.own_groups(), *own), _warn)
        self._stack.callback(readers.close)
        return readers

    def _read_logs(self) -> None:
        source = self._readers.logs
        if source is None:
            return
        from kcover_ebpf.agent.log_watch import LogWatch

        logs = LogWatch(source, _warn)
        self._outputs.logs, self._builder.logs = logs, logs.of_pods
        self._log_thread = self._start(logs)

    def _make_informers(
        self, client: ApiClient, registry: PodRegistry, memories: JobMemories
    ) -> Informers:
        node, executor, again = self._plan.node, self._executor, self._reporter.again
        on_error, on_past = self._on_error, memories.hear
        return Informers(client, node, registry, executor, on_error, again, on_past=on_past)

    def _make_builder(self, sender: ReportSender, informers: Informers) -> ReportBuilder:
        identity = Identity(self._plan.node, self._plan.namespace)
        reports = ReportCache(self._plan.state_dir / "reports")
        believes = self._plan.believes_bandwidth
        return ReportBuilder(
            identity, sender, reports, informers.has_pods, believes_bandwidth=believes
        )

    def _make_executor(
        self, registry: PodRegistry, containers: Containers, journal: OrderJournal
    ) -> order_executor.OrderExecutor:
        logs = self._readers.logs
        bundles = Bundles(
            self._plan.state_dir / "bundles",
            GangReports(self._newest_report, self._complete_report),
            _LOG.info,
            logs.tails if logs is not None else lambda *_: {},
            self._plan.node,
            self._readers.spies,
            self._optional,
        )
        listeners = Listeners(
            acked=self._on_ack,
            killed=self._forget,
            evidence=bundles.of,
            before_stop=bundles.before_stop,
            passed_over=_LOG.info,
            ranks=self._ranks,
        )
        return order_executor.OrderExecutor(registry, containers, journal, listeners, self._resumer)

    # the executor exists before its partners, because it must resume old stops first

    def _forget(self, gang: Gang) -> None:
        self._loop.forget(gang)

    def _newest_report(self, gang: Gang) -> FaultReport | None:
        return self._builder.last.get(gang)

    def _complete_report(self, gang: Gang) -> FaultReport | None:
        return self._builder.evidence_of(gang)

    def _ranks(self, gang: Gang) -> frozenset[int]:
        report = self._builder.evidence_of(gang)
        ranks = report.ranks if report is not None else ()
        return frozenset(rank.pid for rank in ranks if rank.role is Role.RANK and rank.exit is None)

    def _on_ack(self, gang: Gang, ack: Ack) -> None:
        _LOG.info(
            "order %s for %s/%s: %s %s, %d processes %s",
            ack.order,
            gang.namespace,
            gang.name,
            ack.verb.value,
            ack.result.value,
            ack.processes,
            ack.text or "",
        )
        self._outputs.on_order(gang, ack)
        self._reporter.hurry(gang.namespace, report_name(gang, self._plan.node))

    def _acks(self, namespace: str, name: str) -> tuple[Ack, ...]:
        gang = self._builder.gang_of_report(namespace, name)
        return self._executor.acks(gang) if gang is not None else ()

    def _on_error(self, verb: str, resource: str, error: Any) -> None:
        self._outputs.on_error(verb, resource, error)
        subject = f"{verb} {resource}"
        _LOG.warning("cannot %s: %s", subject, error, extra=about(subject))

    def _serve(self, server: MetricsServer, sources: FactSources, informers: Informers) -> None:
        from kcover_ebpf.agent.metrics import AgentMetrics

        metrics = AgentMetrics.of(sources.kernel, sources.devices)
        self._outputs.metrics, self._outputs.readers = metrics, self._readers
        refuses = self._readers.refuses_devices
        metrics.readers.begin(self._readers.names, refuses_devices=refuses)
        checks = {
            "/healthz": lambda: health.wrong(self._parts()),
            "/readyz": lambda: "" if informers.has_pods() else "not synced with the API server yet",
        }
        server.serve(metrics.registry, checks)

    def _parts(self) -> Sequence[health.Part]:
        executor, reporter = self._executor, self._reporter
        return (
            health.Part("sampling", lambda: True, lambda: self._passed_s, LOOP_SILENT_S),
            health.Part(
                "orders", self._order_thread.is_alive, lambda: executor.turn_s, ORDERS_SILENT_S
            ),
            health.Part(
                "reports", self._report_thread.is_alive, lambda: reporter.turn_s, REPORTS_SILENT_S
            ),
            health.Part("watches", lambda: self._informers.is_alive),
            # the duration of a round shows nothing: a check may hang for minutes
            health.Part(
                "inspection",
                lambda: self._inspection_thread is None or self._inspection_thread.is_alive(),
            ),
            health.Part("logs", lambda: self._log_thread is None or self._log_thread.is_alive()),
        )

    def _greeting(self, kernel: KernelSampler, host: str) -> str:
        from kcover_ebpf.kernel.probes import costly

        refused = "; ".join(
            f"not observed: {status.blind_to} ({status.reason})"
            for status in costly(kernel.statuses)
        )
        what = f"kcover-ebpf {__version__} watching node {self._plan.node} of {host}"
        return f"{what}; {refused}" if refused else what
