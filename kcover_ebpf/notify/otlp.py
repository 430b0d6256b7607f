"""Encodes traces and metrics as OTLP, with OpenTelemetry's SDK (the extra `otel`).

The SDK makes spans, metrics and the bytes of a request (OTLP 1.0 over HTTP, binary protobuf). We send the request
as we send every other message, because the SDK's own exporters would retry, follow redirects and read credentials
by other rules.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kcover_ebpf import __version__
from kcover_ebpf.ids import NS
from kcover_ebpf.notify.incident_trace import IncidentTrace, TraceSpan

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.metrics.export import Metric
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Tracer
    from prometheus_client.core import Metric as Family
    from prometheus_client.core import Sample

MISSING = "OpenTelemetry's SDK is not installed: pip install 'kcover-ebpf[otel]'"
_SCOPE = "kcover-ebpf"
_NAMES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.common")


def is_here() -> bool:
    """True if the SDK can be imported."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in _NAMES)
    except ModuleNotFoundError:
        return False


def _resource(instance: str = "") -> Resource:
    from opentelemetry.sdk.resources import Resource

    about = {"service.name": _SCOPE, "service.version": __version__}
    return Resource({**about, "service.instance.id": instance} if instance else about)


def trace_bytes(trace: IncidentTrace) -> bytes:
    """Body of POST /v1/traces, as binary protobuf."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    ids = [span.span_id for span in (trace.root_span, *trace.phases)]

    class Given(IdGenerator):
        def generate_span_id(self) -> int:
            return ids.pop(0)

        def generate_trace_id(self) -> int:
            return trace.trace_id

    made = InMemorySpanExporter()
    provider = TracerProvider(resource=_resource(), id_generator=Given(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracer = provider.get_tracer(_SCOPE, __version__)
    inside = _inside(trace)
    _record(tracer, trace.root_span, None, trace.failed)
    for phase in trace.phases:
        _record(tracer, phase, inside, trace.failed if phase is trace.phases[-1] else "")
    body: bytes = encode_spans(made.get_finished_spans()).SerializeToString()
    return body


def _inside(trace: IncidentTrace) -> Context:
    """Context of the root span, in which its children are created."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    sampled = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(
        trace.trace_id, trace.root_span.span_id, is_remote=False, trace_flags=sampled
    )
    return set_span_in_context(NonRecordingSpan(parent))


def _record(tracer: Tracer, span: TraceSpan, context: Context | None, failed: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    started = tracer.start_span(
        span.name, context, attributes=dict(span.attributes), start_time=_ns(span.begin_s)
    )
    for event in span.events:
        started.add_event(event.name, dict(event.attributes), _ns(event.time_s))
    if failed:
        started.set_status(Status(StatusCode.ERROR, failed))
    started.end(_ns(span.end_s))


def _ns(time_s: float) -> int:
    return round(time_s * NS)


def metrics_bytes(families: Iterable[Family], begin_s: float, now_s: float, instance: str) -> bytes:
    """Body of POST /v1/metrics, as binary protobuf.

    `families`: metrics of a registry; `begin_s`: when its counters were 0, `now_s`: both unix seconds; `instance`:
    name of the program, so that two replicas give two series.
    """
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [metric for family in families for metric in _metrics_of(family, begin_s, now_s)]
    scope = ScopeMetrics(InstrumentationScope(_SCOPE, __version__), metrics, "")
    data = MetricsData([ResourceMetrics(_resource(instance), [scope], "")])
    body: bytes = encode_metrics(data).SerializeToString()
    return body


def _metrics_of(family: Family, begin_s: float, now_s: float) -> Iterator[Metric]:
    """Converted as in "Prometheus and OpenMetrics compatibility" of OpenTelemetry's specification."""
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        Metric,
        NumberDataPoint,
        Sum,
    )

    begin_ns, now_ns = _ns(begin_s), _ns(now_s)
    cumulative = AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        points = list(_histograms(family.samples, begin_ns, now_ns))
        yield Metric(family.name, family.documentation, "", Histogram(points, cumulative))
        return
    numbers = [
        NumberDataPoint(sample.labels, begin_ns, now_ns, sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    if family.type == "counter":
        yield Metric(family.name, family.documentation, "", Sum(numbers, cumulative, True))
    elif family.type == "gauge":
        yield Metric(family.name, family.documentation, "", Gauge(numbers))


def _histograms(samples: Sequence[Sample], begin_ns: int, now_ns: int) -> Iterator[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    series: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = {name: text for name, text in sample.labels.items() if name != "le"}
        found = series.setdefault(
            tuple(sorted(labels.items())), {"bounds": [], "counts": [], "sum": 0.0}
        )
        if sample.name.endswith("_bucket"):
            found["bounds"].append(float(sample.labels["le"]))
            found["counts"].append(sample.value)
        elif sample.name.endswith("_sum"):
            found["sum"] = sample.value
    for labels_of, found in series.items():
        yield _histogram(HistogramDataPoint, dict(labels_of), found, begin_ns, now_ns)


def _histogram(
    kind: Any, labels: Mapping[str, str], found: Mapping[str, Any], begin_ns: int, now_ns: int
) -> Any:
    # Prometheus counts everything below a bound, OpenTelemetry between two bounds; the last bound
    # is infinite
    totals = [int(count) for count in found["counts"]]
    counts = [total - before for before, total in zip([0, *totals], totals, strict=False)]
    return kind(
        attributes=labels,
        start_time_unix_nano=begin_ns,
        time_unix_nano=now_ns,
        count=totals[-1] if totals else 0,
        sum=found["sum"],
        bucket_counts=counts,
        explicit_bounds=found["bounds"][:-1],
        min=None,
        max=None,
    )
