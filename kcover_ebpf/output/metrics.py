"""Prometheus metrics of the sensor and of `run`, served only where `--metrics ADDR:PORT` asks for it.

Series whose labels are a closed list exist from the start, at zero, so that an alert can distinguish
"never happened" from "not there". Names are a contract (docs/metrics.md).
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import choose_encoder, gzip_accepted

from kcover_ebpf import __version__
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.errors import UsageError
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.host import over_bounds
from kcover_ebpf.ids import host_and_port
from kcover_ebpf.model.verdict import CAUSES, Certainty, Verdict, VerdictKind, WaitRow
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.host import METRICS_KEPT_S, SCRAPER_SILENT_S

if TYPE_CHECKING:
    from kcover_ebpf.devices.watch import DeviceWatch
    from kcover_ebpf.kernel.probes import ProbeStatus
    from kcover_ebpf.kernel.sampler import KernelSampler

_MOST_CONNECTIONS = 16
"""A scraper holds one for milliseconds; each costs a thread and a descriptor of a program that has other work."""
DETECTION_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)
_WHY_NOT_ATTACHED = (
    "1 for each probe that is not attached: no_hook (not in this kernel), no_driver (its module is not "
    "loaded), no_library, refused (a capability is missing, or the verifier rejected it)."
)
_AGE = "Seconds since the rank last made progress."
_WHERE_LOST = (
    "Kernel records lost. threads and sockets: no room in the sampler; events: ring buffer full; messages: "
    "driver lines and connections dropped to leave room in it; log and links: the kernel overwrote its log, or dropped "
    "messages about links, before they were read; nccl: communicators and peers without room (--nccl-probes)."
)

_OVER_BOUND = (
    "What tenants made that is larger, or more, than what is kept of it: "
    f"`{'`, `'.join(over_bounds.BOUNDS)}`."
)


class TotalCounter:
    """A counter that is given sums, and exports by how much they grew."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry, *labels: str) -> None:
        self._counter = Counter(name, text, labels, registry=registry)
        self._before: dict[tuple[str, ...], float] = {}

    def labels(self, *values: str) -> None:
        """Have this series exist from now on, at zero."""
        self._counter.labels(*values)

    def take(self, total: float, *values: str) -> None:
        """The sum of the series with these labels now; who counts from zero again adds what it has."""
        before = self._before.get(values, 0.0)
        series = self._counter.labels(*values) if values else self._counter
        series.inc(total - before if total >= before else total)
        self._before[values] = total


class OverBounds:
    """How often what a tenant made was over its bound: a collector, read when it is asked."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For prometheus_client."""
        family = CounterMetricFamily("kcover_over_bound", _OVER_BOUND, labels=["what"])
        for what, count in sorted(over_bounds.counts().items()):
            family.add_metric([what], count)
        yield family


class MetricsSink:
    """Counts what is observed of a job; a `judging.ObservationSink`."""

    wants_waits = True
    """Ages are taken from the wait table."""

    def __init__(
        self,
        read_probes: Callable[[], Iterable[ProbeStatus]],
        read_lost: Callable[[], Mapping[str, int]],
        age_labels: Sequence[str] = ("rank",),
    ) -> None:
        """`read_probes`: what became of each probe, as of now; `read_lost`: losses so far, by family."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._gauge("kcover_build_info", "Always 1.", "version").labels(__version__).set(1)
        self._verdicts = self._counter("kcover_verdicts", "Verdicts reported.", "verdict", "cause")
        for kind, causes in CAUSES.items():
            for cause in causes:
                self._verdicts.labels(kind.value, cause.value)
        text = (
            "Verdicts on faults and suspicions, by how sure they are; a suspicion never ends a job."
        )
        self._certainties = self._counter("kcover_verdict_certainty", text, "certainty")
        for certainty in Certainty:
            self._certainties.labels(certainty.value)
        self._detection = Histogram(
            "kcover_detection_seconds",
            "Time from fault onset to verdict, faults only.",
            buckets=DETECTION_BUCKETS_S,
            registry=self.registry,
        )
        self._ages = self._gauge("kcover_rank_progress_age_seconds", _AGE, *age_labels)
        self._blind = self._counter("kcover_blind", "Passes that could not be judged.")
        self._attached = self._gauge(
            "kcover_probe_attached", "1 if attached, else 0.", "family", "probe"
        )
        self._refused = self._gauge(
            "kcover_probe_refused", _WHY_NOT_ATTACHED, "family", "probe", "reason"
        )
        self._read_probes = read_probes
        self._probes_before: tuple[ProbeStatus, ...] = ()
        self._lost = TotalCounter("kcover_records_lost", _WHERE_LOST, self.registry, "family")
        self._read_lost = read_lost
        self._counted: dict[str, Verdict] = {}
        self._read_kernel()

    @classmethod
    def of(cls, kernel: KernelSampler, devices: DeviceWatch) -> Self:
        """Of a sensor: the probes and losses of its kernel side and of its device families."""
        return cls(
            lambda: (*kernel.statuses, *devices.statuses),
            lambda: kernel.lost_counts | devices.lost_counts,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def on_fact(self, fact: Fact) -> None:
        """Facts are not counted."""

    def on_verdict(self, verdict: Verdict) -> None:
        """Count it; a fault also by how long it took to find. One that is only explained better is counted already."""
        before = self._counted.pop(verdict.job, None)
        if verdict.kind is not VerdictKind.WORKING:
            self._counted[verdict.job] = verdict
        if verdict.same_as(before):
            return
        self._verdicts.labels(verdict.kind.value, verdict.cause.value).inc()
        if verdict.certainty is not None:
            self._certainties.labels(verdict.certainty.value).inc()
        if verdict.kind.is_fault:
            self._detection.observe(max(verdict.time_s - verdict.since_s, 0.0))

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:  # noqa: ARG002
        """Ages of the ranks in the table (ranks that are gone leave the metric), probes, losses."""
        self._read_kernel()
        self._ages.clear()
        for row in rows:
            if row.rank is not None and row.role == "rank":
                self._ages.labels(str(row.rank)).set(row.since_s)

    def on_blind(self, reason: str) -> None:  # noqa: ARG002
        """Count it."""
        self._blind.inc()

    def on_action(self, decision: Decision, text: str) -> None:
        """Only `run` acts by itself; agents count orders."""

    def _read_kernel(self) -> None:
        probes = tuple(self._read_probes())
        if probes != self._probes_before:  # a driver came or went
            self._probes_before = probes
            self._attached.clear()
            self._refused.clear()
            for probe in probes:
                self._attached.labels(probe.family, probe.probe).set(probe.attached)
                if probe.refusal is not None:
                    self._refused.labels(probe.family, probe.probe, probe.refusal.value).set(1)
        for family, count in self._read_lost().items():
            self._lost.take(count, family)


class RunMetrics(MetricsSink):
    """All series of one `run`: those of the sensor, and what was done."""

    def __init__(
        self,
        read_probes: Callable[[], Iterable[ProbeStatus]],
        read_lost: Callable[[], Mapping[str, int]],
    ) -> None:
        super().__init__(read_probes, read_lost)
        self._actions = self._counter(
            "kcover_actions", "Snapshots, shutdowns and restarts performed.", "act"
        )
        for act in (Act.SNAPSHOT, Act.SHUTDOWN, Act.RESTART):
            self._actions.labels(act.value)

    def on_action(self, decision: Decision, text: str) -> None:  # noqa: ARG002
        """Count it."""
        self._actions.labels(decision.act.value).inc()


def parse_address(text: str, option: str = "--metrics") -> tuple[str, int]:
    """Host and port of "ADDR:PORT"; an empty ADDR means all; raises `UsageError`, which names the option."""
    found = host_and_port(text)
    if found is None:
        raise UsageError(
            f"{option} {text[:80]!r} is not ADDR:PORT; write 127.0.0.1:9464, :9464 or [::1]:9464"
        )
    return found


class _Server(ThreadingMixIn, WSGIServer):
    """A slow scraper must not hold up the next one, and many must not use up the descriptors."""

    daemon_threads = True

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._open: dict[Any, None] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments, **keywords)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it; where there are too many, the oldest gives way: a probe of the kubelet must still get in."""
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > _MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread sees an end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that broke off is no news."""

    def server_bind(self) -> None:
        """Bind without asking the name service who we are, which may take seconds."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = SCRAPER_SILENT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Scrapes are no news."""


class MetricsServer:
    """A bound port, which answers after `serve`; raises `UsageError` where it cannot be bound."""

    def __init__(self, address: tuple[str, int]) -> None:
        host, port = address
        server = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, _no_metrics, server, _Handler)
        except OSError as error:
            where = f"{host or '*'}:{port}"
            raise UsageError(
                f"cannot serve on {where}: {error.strerror}; choose another address and port"
            ) from error
        self.port: int = self._server.server_port
        self._thread: threading.Thread | None = None

    def serve(
        self, registry: CollectorRegistry, checks: Mapping[str, Callable[[], str]] | None = None
    ) -> None:
        """Answer from now on, in its own thread; `checks`: path to what is wrong, empty if nothing is."""
        self.serve_app(_with_checks(_Rendered(registry), checks or {}))

    def serve_app(self, app: Callable[..., Iterable[bytes]]) -> None:
        """Answer by a WSGI application from now on, in its own thread."""
        self._server.set_app(app)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Release the port."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Rendered:
    """The metrics as text, made once a second at most however often they are asked for: any pod may ask."""

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry, self._clock = registry, clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bool], tuple[float, bytes]] = {}
        """By content type and whether it is compressed; there are few of them, whatever a client accepts."""

    def __call__(
        self, environ: Mapping[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        encoder, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        is_packed = gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", ""))
        with self._lock:
            made_s, output = self._kept.get((kind, is_packed), (float("-inf"), b""))
            if self._clock() - made_s >= METRICS_KEPT_S:
                output = encoder(self._registry)
                output = gzip.compress(output) if is_packed else output
                self._kept[kind, is_packed] = self._clock(), output
        headers = [("Content-Type", kind), *([("Content-Encoding", "gzip")] if is_packed else [])]
        start_response("200 OK", headers)
        return [output]


def _with_checks(
    metrics: Callable[..., Iterable[bytes]], checks: Mapping[str, Callable[[], str]]
) -> Callable[..., Iterable[bytes]]:
    def answer(
        environ: Mapping[str, object], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        check = checks.get(str(environ.get("PATH_INFO")))
        if check is None:
            return metrics(environ, start_response)
        wrong = check()
        status = "503 Service Unavailable" if wrong else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [(wrong or "ok").encode() + b"\n"]

    return answer


def _no_metrics(environ: object, start_response: Callable[..., object]) -> list[bytes]:  # noqa: ARG001
    start_response("503 Service Unavailable", [])
    return []
