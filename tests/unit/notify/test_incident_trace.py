"""An incident as a trace: its phases, its ids, and the bytes that OpenTelemetry's own types read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kcover_ebpf.api.incident import Incident, Lost, Moment, Phase, Status
from kcover_ebpf.errors import NotSent, PolicyError
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.notify.incident_trace import trace_of
from kcover_ebpf.notify.message import WORDS, fields_of, message_of
from kcover_ebpf.notify.metrics_pusher import MetricsPusher
from kcover_ebpf.notify.otlp import metrics_bytes, trace_bytes
from kcover_ebpf.notify.sending import Sender
from kcover_ebpf.notify.target import MessageForm, NotifyTarget, targets_of
from tests.unit.notify.notified_incidents import incident, status
from tests.unit.support import incident_archives as build

BEGIN_S = build.BEGIN_S


def restarted() -> tuple[Incident, Status]:
    found = build.archive().incident
    assert found is not None
    assert found.status is not None
    lost = Lost(3.0, 9.2, 1.0, 0.8, 7.5)
    return replace(found, uid="u-1"), replace(found.status, lost=lost)


def test_trace_of__a_span_for_each_phase_from_the_first_sign_to_the_first_step() -> None:
    trace = trace_of(*restarted())
    shown = [(span.name, span.begin_s - BEGIN_S, span.end_s - BEGIN_S) for span in trace.phases]
    assert [name for name, _, _ in shown] == [
        "detect", "decide", "shut down", "reschedule", "first progress",
    ]  # fmt: skip
    edges = [0.0, 3.0, 12.2, 13.2, 14.0, 21.5]
    assert [begin for _, begin, _ in shown] == pytest.approx(edges[:-1])
    assert [end for _, _, end in shown] == pytest.approx(edges[1:])
    assert (trace.root_span.begin_s, trace.root_span.end_s) == (BEGIN_S, BEGIN_S + 21.5)
    assert trace.root_span.name == "incident HUNG storage"
    assert trace.failed == ""
    assert {event.name for event in trace.phases[0].events} == {"evidence", "wait"}
    assert {event.time_s for event in trace.phases[0].events} == {BEGIN_S + 3.0}
    assert [event.name for event in trace.root_span.events][:2] == ["Open", "Decided"]
    assert trace.root_span.attributes["k8s.namespace.name"] == "research"


def test_trace_of__the_same_incident_has_the_same_ids_and_another_one_has_others() -> None:
    first, second = trace_of(*restarted()), trace_of(*restarted())
    assert first == second
    incident_, status_ = restarted()
    other = trace_of(replace(incident_, uid="u-2"), status_)
    ids = [span.span_id for trace in (first, other) for span in (trace.root_span, *trace.phases)]
    assert len(set(ids)) == len(ids) == 12
    assert first.trace_id != other.trace_id


@pytest.mark.parametrize("phase", [Phase.OBSERVED, Phase.REFUSED, Phase.FAILED])
def test_trace_of__what_was_not_restarted_has_no_phases_that_did_not_begin(phase: Phase) -> None:
    trace = trace_of(incident(), status(phase, lost=None))
    assert [span.name for span in trace.phases] == ["detect", "decide"]
    assert bool(trace.failed) is (phase is not Phase.OBSERVED)


def test_trace_of__a_clock_that_was_set_back_makes_no_span_of_negative_length() -> None:
    moments = (Moment("Open", 100.0), Moment("ShuttingDown", 90.0), Moment("Recovered", 80.0))
    odd = Status(
        Phase.RECOVERED,
        verdict=Verdict(VerdictKind.HUNG, Cause.STOPPED, since_s=120.0),
        timeline=moments,
    )
    trace = trace_of(incident(), odd)
    assert all(span.begin_s <= span.end_s for span in (trace.root_span, *trace.phases))


def test_trace_of__an_incident_without_a_status_of_any_kind_is_one_span() -> None:
    trace = trace_of(incident(), Status(Phase.OPEN))
    assert (trace.phases, trace.root_span.name) == ((), "incident")


def test_message__the_trace_is_no_part_of_a_template_or_of_what_a_webhook_gets() -> None:
    assert "trace" not in WORDS
    assert set(fields_of(message_of(incident(), status()))) == WORDS


def test_trace_bytes__are_what_opentelemetry_reads() -> None:
    trace = trace_of(*restarted())
    request = ExportTraceServiceRequest.FromString(trace_bytes(trace))
    (resource,) = request.resource_spans
    assert {pair.key: pair.value.string_value for pair in resource.resource.attributes}[
        "service.name"
    ] == "kcover-ebpf"
    spans = resource.scope_spans[0].spans
    whole, *phases = spans
    assert {span.trace_id for span in spans} == {trace.trace_id.to_bytes(16, "big")}
    assert whole.parent_span_id == b""
    assert {span.parent_span_id for span in phases} == {whole.span_id}
    assert whole.start_time_unix_nano == BEGIN_S * 1_000_000_000
    assert phases[0].name == "detect"
    assert len(phases[0].events) == len(trace.phases[0].events)


def test_trace_bytes__a_restart_that_failed_is_an_error_of_its_last_phase() -> None:
    trace = trace_of(incident(), status(Phase.FAILED, "the pods do not start", lost=None))
    request = ExportTraceServiceRequest.FromString(trace_bytes(trace))
    whole, detect, decide = request.resource_spans[0].scope_spans[0].spans
    assert [span.status.code for span in (whole, detect, decide)] == [2, 0, 2]
    assert whole.status.message == "the pods do not start"


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("kcover_a", "A.", ["phase"], registry=made).labels("Open").inc(3)
    Gauge("kcover_b", "B.", registry=made).set(-1.5)
    durations = Histogram("kcover_c_seconds", "C.", buckets=(1.0, 10.0), registry=made)
    for seconds in (0.5, 5.0, 6.0, 100.0):
        durations.observe(seconds)
    return made


def test_metrics_bytes__counters_gauges_and_histograms() -> None:
    data = metrics_bytes(registry().collect(), 100.0, 160.0, "pod-1")
    (resource,) = ExportMetricsServiceRequest.FromString(data).resource_metrics
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    point = metrics["kcover_a"].sum.data_points[0]
    assert (point.as_double, point.attributes[0].value.string_value) == (3.0, "Open")
    assert (point.start_time_unix_nano, point.time_unix_nano) == (100 * 10**9, 160 * 10**9)
    assert metrics["kcover_a"].sum.is_monotonic
    assert metrics["kcover_b"].gauge.data_points[0].as_double == -1.5
    histogram = metrics["kcover_c_seconds"].histogram.data_points[0]
    assert list(histogram.bucket_counts) == [1, 2, 1]
    assert list(histogram.explicit_bounds) == [1.0, 10.0]
    assert (histogram.count, histogram.sum) == (4, 111.5)
    assert not histogram.HasField("min")


COLLECTOR = {"name": "traces", "form": "OpenTelemetry", "url": "http://collector:4318"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"metricsSeconds": 5}, "metricsSeconds"),
        ({"metricsSeconds": 60, "form": "Slack"}, "belongs to the form OpenTelemetry"),
        ({"url": ""}, "url"),
        ({"template": "{}"}, "template"),
    ],
)
def test_targets_of__what_a_collector_is_not(more: dict[str, object], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        targets_of({"targets": [COLLECTOR | more]}, "targets", WORDS)


def test_targets_of__a_collector_may_get_metrics() -> None:
    (target,) = targets_of({"targets": [COLLECTOR | {"metricsSeconds": 60}]}, "targets", WORDS)
    assert (target.form, target.metrics_s) == (MessageForm.OPEN_TELEMETRY, 60)


def test_metrics_pusher__no_collector_is_an_error_that_names_no_address(tmp_path: Path) -> None:
    target = NotifyTarget("t", MessageForm.OPEN_TELEMETRY, "http://127.0.0.1:1", metrics_s=60)
    pusher = MetricsPusher(target, registry().collect, Sender(tmp_path), "pod-1")
    with pytest.raises(NotSent) as caught:
        pusher.push()
    assert "127.0.0.1" not in str(caught.value)
