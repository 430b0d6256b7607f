"""Metrics: what exists from the start, what is counted, and what is served."""

import contextlib
import dataclasses
import gzip
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from kcover_ebpf.agent.metrics import AgentMetrics
from kcover_ebpf.api.fault_report import FaultReport, PodRef
from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status, object_of, status_of
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.telemetry import ControllerTelemetry
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.errors import UsageError
from kcover_ebpf.facts.devices import PortChange
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.probes import ProbeStatus, Refusal
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, Verdict, VerdictKind, WaitRow
from kcover_ebpf.output import metrics
from kcover_ebpf.output.metrics import (
    MetricsServer,
    MetricsSink,
    RunMetrics,
    TotalCounter,
    parse_address,
)
from kcover_ebpf.settings import Act
from tests.unit.support.fake_clock import FakeClock

VERDICT = Verdict(VerdictKind.HUNG, Cause.STOPPED, 103.5, 100.0, job="j", incident="j-1")
TAKEN = ProbeStatus("threads", "sample_threads", True, "", "waits")
REFUSED = ProbeStatus("tcp", "on_retransmit", False, "no", "drops", Refusal.REFUSED)


def scrape(port: int, host: str = "127.0.0.1") -> dict[tuple[str, tuple[str, ...]], float]:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_sink__a_verdict_that_is_explained_later_is_counted_once() -> None:
    sink = MetricsSink(lambda: [TAKEN], dict)
    odd = Evidence(EvidenceKind.OUTLIER, "rank 1 is at save (train.py:71)")
    sink.on_verdict(VERDICT)
    sink.on_verdict(dataclasses.replace(VERDICT, evidence=(odd,), time_s=104.0))
    labels = {"verdict": "HUNG", "cause": "stopped"}
    assert sink.registry.get_sample_value("kcover_verdicts_total", labels) == 1
    assert sink.registry.get_sample_value("kcover_detection_seconds_count") == 1
    sink.on_verdict(dataclasses.replace(VERDICT, incident="j-2"))
    assert sink.registry.get_sample_value("kcover_verdicts_total", labels) == 2


def test_run_metrics__what_is_reported_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS_KEPT_S", 0.0)
    server = MetricsServer(("127.0.0.1", 0))
    lost = {"threads": 0, "events": 2}
    sink = RunMetrics(lambda: [TAKEN, REFUSED], lambda: lost)
    server.serve(sink.registry)
    try:
        before = scrape(server.port)
        assert before["kcover_verdicts_total", ("stopped", "HUNG")] == 0
        assert before["kcover_actions_total", ("shutdown",)] == 0
        assert before["kcover_detection_seconds_count", ()] == 0
        assert before["kcover_probe_attached", ("threads", "sample_threads")] == 1
        assert before["kcover_probe_attached", ("tcp", "on_retransmit")] == 0
        assert before["kcover_probe_refused", ("tcp", "on_retransmit", "refused")] == 1
        assert before["kcover_records_lost_total", ("threads",)] == 0
        assert before["kcover_records_lost_total", ("events",)] == 2
        assert before["process_resident_memory_bytes", ()] > 0
        sink.on_verdict(VERDICT)
        working = dataclasses.replace(VERDICT, kind=VerdictKind.WORKING, cause=Cause.TRAINING)
        sink.on_verdict(working)
        sink.on_action(Decision(Act.SHUTDOWN, "why", VERDICT), "done")
        lost["threads"] = 5
        sink.on_waits([WaitRow(3, 7, 7, "python3", "rank", "futex", 2.5)], "")
        sink.on_blind("lost")
        after = scrape(server.port)
        assert after["kcover_verdicts_total", ("stopped", "HUNG")] == 1
        assert after["kcover_verdicts_total", ("training", "WORKING")] == 1
        assert after["kcover_actions_total", ("shutdown",)] == 1
        assert after["kcover_detection_seconds_sum", ()] == 3.5
        assert after["kcover_detection_seconds_count", ()] == 1
        assert after["kcover_rank_progress_age_seconds", ("3",)] == 2.5
        assert after["kcover_blind_total", ()] == 1
        assert after["kcover_records_lost_total", ("threads",)] == 5
        sink.on_waits([], "")
        assert ("kcover_rank_progress_age_seconds", ("3",)) not in scrape(server.port)
    finally:
        server.close()


def test_metrics_sink__a_probe_of_a_driver_that_comes_is_attached_from_then_on() -> None:
    waiting = ProbeStatus("gpu", "on_xid", False, "no driver", "Xids", Refusal.NO_DRIVER)
    probes = [TAKEN, waiting]
    sink = MetricsSink(lambda: probes, dict)
    refused = {"family": "gpu", "probe": "on_xid", "reason": "no_driver"}
    attached = {"family": "gpu", "probe": "on_xid"}
    value = sink.registry.get_sample_value
    assert value("kcover_probe_refused", refused) == 1
    assert value("kcover_probe_attached", attached) == 0
    probes[1] = dataclasses.replace(waiting, attached=True, reason="", refusal=None)
    sink.on_waits([], "")
    assert value("kcover_probe_refused", refused) is None
    assert value("kcover_probe_attached", attached) == 1


def test_agent_metrics__what_has_a_closed_list_of_labels_is_there_before_it_happens() -> None:
    """So a dashboard shows zero, and an increase from nothing is one."""
    value = AgentMetrics(list, dict).registry.get_sample_value
    assert value("kcover_orders_total", {"verb": "Stop", "result": "Done"}) == 0
    lost = {"verb": "apply", "resource": "faultreports", "kind": "Unreachable"}
    assert value("kcover_api_errors_total", lost) == 0
    value = controller().get_sample_value
    assert value("kcover_recovery_seconds_count", {"way": "InPlace"}) == 0
    assert value("kcover_api_errors_total", {"verb": "watch", "resource": "objects"}) == 0
    assert value("kcover_events_lost_total") == 0


def test_agent_metrics__only_run_counts_actions() -> None:
    """An agent ends a job by order, and counts that."""
    labels = {"act": "shutdown"}
    assert RunMetrics(list, dict).registry.get_sample_value("kcover_actions_total", labels) == 0
    assert (
        AgentMetrics(list, dict).registry.get_sample_value("kcover_actions_total", labels) is None
    )


def controller() -> CollectorRegistry:
    writer: Any = SimpleNamespace(event=print)
    return ControllerTelemetry(ObjectCache(print), writer, lambda: 0.0).registry


def shown(status: Status) -> CollectorRegistry:
    """What the leader serves of one incident."""
    writer: Any = SimpleNamespace(event=print)
    store = ObjectCache(print)
    made = Incident("ml", "llm-1", JobRef("Job", "llm", "ju"), {"k": "llm"}, status=status)
    raw = object_of(made) | {"status": status_of(status)}
    store.on_incident(Event(Change.SET, raw))
    telemetry = ControllerTelemetry(store, writer, lambda: 0.0)
    telemetry.leads = lambda: True
    return telemetry.registry


@pytest.mark.parametrize("owner", ["team-vision", None])
def test_controller_telemetry__an_open_incident_says_whose_the_job_is(owner: str | None) -> None:
    """Alertmanager can then find the owner by a label."""
    text = generate_latest(shown(Status(Phase.OPEN, verdict=VERDICT, owner=owner))).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("kcover_incident_info{")]
    assert f'owner="{owner or ""}"' in line


@pytest.mark.parametrize(
    ("acts_at_s", "closed_s", "said"),
    [(1_700_000_005.0, None, 1_700_000_005.0), (None, None, None), (1_700_000_005.0, 9.0, None)],
    ids=["open", "a suspicion", "over"],
)
def test_controller_telemetry__an_open_incident_says_when_its_job_is_ended(
    acts_at_s: float | None, closed_s: float | None, said: float | None
) -> None:
    verdict = dataclasses.replace(VERDICT, acts_at_s=acts_at_s)
    value = shown(Status(Phase.OBSERVED, verdict=verdict, closed_s=closed_s)).get_sample_value
    labels = {"namespace": "ml", "training_job": "llm", "incident": "llm-1"}
    assert value("kcover_incident_acts_at_seconds", labels) == said


PROGRAMS = {
    "run": lambda: RunMetrics(list, dict).registry,
    "agent": lambda: AgentMetrics(list, dict).registry,
    "controller": controller,
}


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("program", PROGRAMS)
def test_metrics__promtool_finds_nothing_to_say(program: str) -> None:
    """Names, units and help texts are as Prometheus' own rules want them."""
    text = generate_latest(PROGRAMS[program]())
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_metrics_sink__ipv6() -> None:
    server = MetricsServer(("::1", 0))
    server.serve(MetricsSink(list, dict).registry)
    try:
        assert ("kcover_blind_total", ()) in scrape(server.port, "[::1]")
    finally:
        server.close()


def test_rendered__metrics_are_made_once_a_second_however_often_they_are_asked_for() -> None:
    made: list[int] = []

    class FakeCollector:
        def collect(self) -> list[GaugeMetricFamily]:
            made.append(len(made))
            return [GaugeMetricFamily("made", "Times.", value=len(made))]

    registry, clock = CollectorRegistry(auto_describe=False), FakeClock()
    registry.register(FakeCollector())
    made.clear()
    app = metrics._Rendered(registry, clock)

    def ask(**environ: str) -> bytes:
        return b"".join(app(environ, lambda *_: None))

    for number in range(100):
        # nor does it help to ask for something else
        assert b"made 1.0" in ask(HTTP_ACCEPT=f"text/{number}", QUERY_STRING=f"name[]={number}")
    assert made == [0]
    assert b"made 2.0" in gzip.decompress(ask(HTTP_ACCEPT_ENCODING="gzip"))
    clock.now_s += 1.0
    assert b"made 3.0" in ask()


def test_metrics_server__a_port_in_use_is_a_usage_error() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(UsageError, match=r"cannot serve on 127\.0\.0\.1:"):
            MetricsServer(("127.0.0.1", holder.getsockname()[1]))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":0", ("", 0)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_parse_address__addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9464",
        "host",
        "host:",
        "host:x",
        "host:65536",
        "::1:80",
        "[::1:80",
        "host:\u0663",
        "h:" + "9" * 5000,
    ],
)
def test_parse_address__bad_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="is not ADDR:PORT"):
        parse_address(text)


def idle(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=5)
    client.sendall(b"GET /met")
    return client


def is_closed(client: socket.socket, within_s: float) -> bool:
    client.settimeout(within_s)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer(("127.0.0.1", 0))
    made.serve(MetricsSink(list, dict).registry, {"/healthz": lambda: ""})
    yield made
    made.close()


def test_metrics_server__idle_connections_give_way_and_a_probe_still_gets_in(
    server: MetricsServer,
) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as clients:
        idlers = [clients.enter_context(idle(server.port)) for _ in range(60)]
        assert ("kcover_blind_total", ()) in scrape(server.port)
        assert all(is_closed(idler, 2) for idler in idlers[:40])
        deadline = time.monotonic() + 10
        while threading.active_count() - threads > 16:  # a thread ends after its connection
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_metrics_server__a_client_that_says_nothing_is_let_go(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcover_ebpf.output.metrics._Handler.timeout", 0.1)
    with idle(server.port) as client:
        assert is_closed(client, 2)


def ranks(count: int, rank: int | None = 0) -> FaultReport:
    ranks = (
        RankSnapshot(
            Pid(100 + n),
            Role.RANK,
            State.FUTEX,
            "u",
            rank=None if rank is None else n,
            age_s=float(n),
        )
        for n in range(count)
    )
    return FaultReport("n", 1.0, 1, pods=(PodRef("p", "u"),), ranks=tuple(ranks))


def ages(metrics: AgentMetrics) -> dict[str, float]:
    name = "kcover_rank_progress_age_seconds"
    return {
        sample.labels["rank"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_agent_metrics__the_series_of_ages_have_an_end() -> None:
    metrics = AgentMetrics(list, dict)
    gang = Gang(GangId.of("team", {"job": "train"}), "train", None)
    metrics.on_pass({gang: ranks(2000)}, 1, 0, Counter())
    reported = ages(metrics)
    assert len(reported) == 1024
    assert reported["1999"] == 1999.0, "the longest is kept"
    metrics.on_pass({gang: ranks(9, rank=None)}, 1, 0, Counter())
    assert ages(metrics) == {"": 8.0}, "a pid would be another series with each start"


def test_agent_metrics__links_of_pods_leave_no_series() -> None:
    metrics = AgentMetrics(list, dict)
    for port, device in (("veth4711", ""), ("eth0", "0000:9a:00.0"), ("soft/1", "")):
        metrics.on_node_fact(PortChange(1, port, device, False, "down"))
    reported = {
        sample.labels["port"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kcover_port_down_total"
    }
    assert reported == {"eth0", "soft/1"}


def test_total_counter__exports_growth_and_survives_one_who_counts_from_zero_again() -> None:
    registry = CollectorRegistry()
    counter = TotalCounter("kcover_things", "Things.", registry, "kind")
    counter.labels("a")
    assert registry.get_sample_value("kcover_things_total", {"kind": "a"}) == 0
    for total in (3, 3, 5, 2):
        counter.take(total, "a")
    counter.take(1, "b")
    assert registry.get_sample_value("kcover_things_total", {"kind": "a"}) == 7
    assert registry.get_sample_value("kcover_things_total", {"kind": "b"}) == 1
