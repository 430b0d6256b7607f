"""The controller as a program: watches, workers, the Lease, and its HTTP servers."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from kcover_ebpf.api.agent_lease import collection as leases
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.node_health import HEALTHS
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.board_server import BoardPage
from kcover_ebpf.controller.breaker import Limits, acting
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.culprit_conditions import CulpritConditions
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.incident_gc import IncidentCollector
from kcover_ebpf.controller.job_sizes import GpuPrices, JobSizes
from kcover_ebpf.controller.kcover_events import FIELDS, BadNodes, KcoverEvents
from kcover_ebpf.controller.kind_registry import JOB_KINDS, KindRegistry
from kcover_ebpf.controller.node_reconciler import NodeLimits, NodeReconciler
from kcover_ebpf.controller.notices import Notices
from kcover_ebpf.controller.over_events import OverEvents
from kcover_ebpf.controller.owners import Owners
from kcover_ebpf.controller.pod_cache import PodCache
from kcover_ebpf.controller.repairs import Repairs
from kcover_ebpf.controller.telemetry import ControllerTelemetry
from kcover_ebpf.controller.workqueue import WorkQueue
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, KcoverError, OverBound
from kcover_ebpf.host import over_bounds
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.leader_election import LeaderElector
from kcover_ebpf.kube.reflector import Event, Reflector
from kcover_ebpf.notify.target import NotifyTarget
from kcover_ebpf.output.metrics import MetricsServer
from kcover_ebpf.recovery.nodes.node_plan import NodeBreaker
from kcover_ebpf.recovery.repair import RepairLimits
from kcover_ebpf.tunables.controller import (
    COLLECT_AFTER_OBJECTS,
    LONGEST_REST_S,
    LONGEST_RETRY_S,
    OWNER_REQUEST_S,
    REST_FACTOR,
    RESYNC_S,
    RETRY_S,
)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Settings of the controller; times in seconds."""

    namespace: str
    identity: str
    pod_uid: str = ""
    """Uid of the controller's own pod, which is named `identity`; empty outside of a cluster."""
    lease: str = "kcover-ebpf-controller"
    metrics: tuple[str, int] | None = None
    page: tuple[str, int] | None = None
    """Address of the read-only page; None: not served."""
    limits: Limits = field(default_factory=Limits)
    nodes: NodeBreaker = field(default_factory=NodeBreaker)
    repairs: RepairLimits = field(default_factory=RepairLimits)
    targets: tuple[NotifyTarget, ...] = ()
    """Targets of messages about incidents."""
    prices: GpuPrices = field(default_factory=GpuPrices)
    secrets: Path | None = None
    """Folder with the secrets of the targets; None: they have none."""
    marks_culprits: bool = False
    """True: the culprit's pod of each open incident gets a condition."""
    workers: int = 16

    @property
    def about_nodes(self) -> NodeLimits:
        """The operator's limits on what is done with nodes."""
        limits = self.limits
        return NodeLimits(self.namespace, self.nodes, limits.window_s, limits.dry_run)


class Controller:
    """One replica of the controller."""

    def __init__(self, client: ApiClient, options: ControllerOptions) -> None:
        self._settings = options
        self._queue: WorkQueue[GangId | str] = WorkQueue(
            share=max(1, options.workers // 4), owner_of=_owner_of
        )
        self._failures: dict[GangId | str, int] = {}
        self._stop = threading.Event()
        store = self._store = ObjectCache(self._queue.add, self._queue.add, self._bad, self._over)
        self._writer = ApiWriter(client, self._suspect, lambda: self._elector.leads)
        self._telemetry = ControllerTelemetry(store, self._writer, time.time)
        kinds = self._kinds = KindRegistry(client, self._writing, self._telemetry.event, time.time)
        self._telemetry.job_kinds = kinds.counts
        self._gangs = PodCache(client, self._queue.add, self._watch_failed, self._over, kinds.mark)
        owners = Owners(client.hurried(OWNER_REQUEST_S), time.monotonic, lambda: kinds.table)
        limits = options.limits
        self._jobs = GangReconciler(
            store, self._gangs, owners, self._writer, self._telemetry, limits
        )
        self._jobs.sizes = JobSizes(store, options.prices)
        self._nodes = NodeReconciler(
            client, self._writing, store, options.about_nodes, self._telemetry.event
        )
        self._repairs = Repairs(
            client,
            self._writing,
            store,
            options.about_nodes,
            options.repairs,
            self._telemetry.event,
        )
        self._over_pods = OverEvents(client, store, self._telemetry.over)
        self._elector = self._make_elector(client)
        self._telemetry.leads = lambda: self._elector.leads
        self._notices = self._make_notices(store)
        self._archive = self._make_archive(owners)
        self._culprits = self._make_culprits(store)
        self._telemetry.cordoned, self._telemetry.breakers = self._cordoned, self._breakers
        self._workers = self._make_workers(options.workers)
        self._watches = self._make_watches(client, store)

    def _make_culprits(self, cache: ObjectCache) -> CulpritConditions | None:
        if not self._settings.marks_culprits:
            return None
        return CulpritConditions(cache, self._writer, self._may_work)

    def _make_notices(self, cache: ObjectCache) -> Notices:
        options, registry = self._settings, self._telemetry.registry
        notices = Notices(
            cache,
            self._writer,
            options.targets,
            options.secrets,
            registry.collect,
            options.identity,
        )
        self._telemetry.notify(notices)
        return notices

    def _make_elector(self, client: ApiClient) -> LeaderElector:
        options = self._settings
        return LeaderElector(
            client,
            options.namespace,
            options.lease,
            options.identity,
            time.monotonic,
            options.pod_uid,
        )

    def _writing(self) -> ApiClient:
        """The session, for one write; raises `ActionError` unless this replica leads."""
        return self._writer.api

    def _make_watches(self, client: ApiClient, cache: ObjectCache) -> list[Reflector]:
        self._bad_nodes = BadNodes(cache, self._telemetry.event, lambda: self._elector.leads)
        triggers = KcoverEvents(client, cache, self._kinds.mark, self._over, self._bad_nodes.report)
        ours = f"/apis/{API_VERSION}"
        watched: tuple[tuple[str, dict[str, str], Callable[[Event], None]], ...] = (
            (f"{ours}/faultpolicies", {}, cache.on_policy),
            (f"{ours}/incidents", {}, cache.on_incident),
            ("/api/v1/nodes", {}, cache.on_node),
            (f"{ours}/faultreports", {}, cache.on_report),
            ("/api/v1/events", {"fieldSelector": FIELDS}, triggers.on_event),
            # not waited for: without them no node is uncordoned automatically, only the agents' reports count,
            # and jobs of operators' own kinds are reported but not restarted; everything else works
            (HEALTHS, {}, cache.on_health),
            (JOB_KINDS, {}, self._kinds.on_kind),
            (leases(self._settings.namespace), {}, cache.on_lease),
        )
        return [
            Reflector(client, path, query, on_event, self._watch_failed)
            for path, query, on_event in watched
        ]

    def _make_archive(self, owners: Owners) -> IncidentCollector:
        catch_up = self._notices.catch_up
        return IncidentCollector(self._store, owners, self._writer, self._may_work, catch_up)

    def _make_workers(self, count: int) -> list[threading.Thread]:
        return [
            threading.Thread(target=self._work, name=f"worker {number}", daemon=True)
            for number in range(count)
        ]

    def run(self) -> None:
        """Work until `stop` is called; raises `UsageError` if the metrics cannot be served."""
        collect_rarely()
        servers = self._serve()
        for watch in self._watches:
            watch.start()
        self._gangs.start()
        self._kinds.start()
        self._archive.start()
        if self._culprits is not None:
            self._culprits.start()
        self._telemetry.start()
        self._notices.start()
        for worker in self._workers:
            worker.start()
        self._elector.start(self._on_lead, time.time)
        while not self._stop.wait(RESYNC_S):
            self._reconcile_all()
        self._queue.close()
        self._archive.stop()
        if self._culprits is not None:
            self._culprits.stop()
        self._kinds.stop()
        for worker in self._workers:
            worker.join(5.0)
        self._telemetry.close(2.0)
        self._notices.close(2.0)
        self._elector.stop()
        for server in servers:
            server.close()

    def _serve(self) -> list[MetricsServer]:
        """Start the servers: metrics and probes, and the page of all jobs."""
        servers = []
        if (address := self._settings.metrics) is not None:
            servers.append(MetricsServer(address))
            probes = {"/healthz": self._health, "/readyz": self._ready}
            servers[-1].serve(self._telemetry.registry, probes)
        if (address := self._settings.page) is not None:
            servers.append(MetricsServer(address))
            servers[-1].serve_app(BoardPage(self._store))
        return servers

    def stop(self) -> None:
        """Make `run` return; may be called from a signal handler."""
        self._stop.set()

    def _reconcile_all(self) -> None:
        self._bad_nodes.pass_on()
        if self._elector.leads:
            for key in self._store.gangs:
                self._queue.add(key)
            reported = (*list(self._store.host_reports), *list(self._store.healths))
            for name in {*reported, *self._nodes.cordoned_names, *self._nodes.devices.nodes}:
                self._queue.add(name)

    def _on_lead(self, leads: bool) -> None:
        _LOG.info("%s", "leading" if leads else "no longer the leader")
        self._reconcile_all()

    def _may_work(self) -> bool:
        return self._elector.leads and self._synced()

    def _synced(self) -> bool:
        return self._gangs.synced and all(watch.synced.is_set() for watch in self._watches[:4])

    def _work(self) -> None:
        while True:
            key = self._queue.take()
            if key is None:
                return
            began_s, rest_s = time.thread_time(), 0.0
            try:
                rest_s = self._reconcile(key)
            finally:
                # a gang of 1,000 pods on as many nodes causes an event every millisecond
                took_s = time.thread_time() - began_s
                self._queue.done(key, max(rest_s, min(took_s * REST_FACTOR, LONGEST_REST_S)))

    def _reconcile(self, gang_id: GangId | str) -> float:
        """Reconcile a gang or a node; returns the seconds for which it is then left alone whatever happens."""
        if not self._elector.leads:
            return 0.0
        if not self._synced():
            self._queue.add(gang_id, 0.2)
            return 0.0
        try:
            if isinstance(gang_id, str):
                self._nodes.reconcile(gang_id)
                self._repairs.reconcile(gang_id)
                self._over_pods.reconcile(gang_id)
                again_s = None
            else:
                again_s = self._jobs.reconcile(gang_id)
        except KcoverError as error:
            count = self._failures[gang_id] = self._failures.get(gang_id, 0) + 1
            wait_s = min(RETRY_S * 2.0 ** (count - 1), LONGEST_RETRY_S)
            self._telemetry.failed(
                "reconcile", "nodes" if isinstance(gang_id, str) else "incidents"
            )
            _LOG.warning("%s: %s; retrying in %.0f s", gang_id, error, wait_s)
            self._queue.add(gang_id, wait_s)
            # a first failure, such as a conflict, may be over with the next event
            return wait_s - RETRY_S
        except Exception:  # noqa: BLE001
            # one gang that cannot be handled must not end the work on all others
            self._telemetry.failed("reconcile", "internal")
            _LOG.exception("%s: internal error, please report it", gang_id)
            self._queue.add(gang_id, LONGEST_RETRY_S)
        else:
            self._failures.pop(gang_id, None)
            if again_s is not None:
                self._queue.add(gang_id, again_s)
        return 0.0

    def _suspect(self, node: str, reason: str, namespace: str) -> None:
        self._nodes.suspect(node, reason, namespace)

    def _cordoned(self) -> int:
        return self._nodes.cordoned_count

    def _breakers(self) -> dict[str, bool]:
        limits = self._settings.limits
        busy = len(acting(self._store, limits.window_s)) >= limits.jobs
        return {"jobs": busy, "nodes": self._nodes.is_full}

    def _bad(self, text: str) -> None:
        self._telemetry.failed("read", "objects")
        _LOG.warning("%s", text)

    def _over(self, bound: OverBound) -> None:
        over_bounds.count(bound.what)
        self._telemetry.over(bound)

    def _watch_failed(self, error: ApiError) -> None:
        self._telemetry.failed("watch", "objects")
        _LOG.warning("%s", error)

    def _health(self) -> str:
        if self._stop.is_set():
            return "stopping"
        dead = [
            thread.name
            for thread in self._threads
            if thread.ident is not None and not thread.is_alive()
        ]
        return f"these threads are dead: {', '.join(dead)}" if dead else ""

    @property
    def _threads(self) -> list[threading.Thread]:
        watches = [watch.thread for watch in self._watches]
        elector = [self._elector.thread] if self._elector.thread is not None else []
        culprits = [self._culprits.thread] if self._culprits is not None else []
        others = [
            *culprits,
            self._archive.thread,
            self._kinds.thread,
            self._telemetry.thread,
            *self._notices.threads,
            *elector,
        ]
        return [*watches, *self._gangs.threads, *self._workers, *others]

    def _ready(self) -> str:
        return "" if self._synced() else "not synced with the API server yet"


def _owner_of(gang_id: GangId | str) -> str:
    """Whose share of the workers a key uses: that of a namespace, or that of all nodes, which is no namespace's name.

    Nodes are written one after the other. If that takes long, it must not keep jobs from being restarted.
    """
    return "" if isinstance(gang_id, str) else gang_id.namespace


def collect_rarely() -> None:
    """Run the cyclic garbage collector less often: reports of large gangs are many objects without cycles."""
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])
