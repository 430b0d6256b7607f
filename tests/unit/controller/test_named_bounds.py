"""Every bound on what a tenant makes: what is over it is counted, and named in an Event to its owner."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.agent.log_watch import LogWatch
from kcover_ebpf.agent.over_pods import OverPods
from kcover_ebpf.api.fault_report import FaultReport, OverPod
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.controller import incident_bounds, pod_cache, telemetry
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.kcover_events import KcoverEvents
from kcover_ebpf.controller.over_events import OverEvents
from kcover_ebpf.controller.pod_cache import Pods
from kcover_ebpf.controller.telemetry import ControllerTelemetry
from kcover_ebpf.errors import OverBound
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.host import bounded, open_files, over_bounds, stack_words
from kcover_ebpf.host.over_bounds import BOUNDS, OF_PODS
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel import owners
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.logs.wanted_logs import LogTurn
from kcover_ebpf.output.metrics import OverBounds
from kcover_ebpf.tunables.agent import OVER_REPORTED_S
from kcover_ebpf.tunables.controller import OVER_SAID_S, TRIGGERS_OF_ONE
from tests.unit.support.incident_objects import incident
from tests.unit.support.kept_policies import policy_object
from tests.unit.support.recovery_events import FakePods, asks

JOB_NAME = "batch.kubernetes.io/job-name"
ROOT = Path(__file__).parents[3]
NOW_S = 1_000_000.0
UID, NODE = "u-p", "n1"
MINE = 4_000_000
"""More than any number of a process: what is found of it is found in the pod."""


def pod_object(name: str = "p", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": f"u-{name}"}
    return {
        "metadata": metadata | {"labels": {JOB_NAME: "j"} | labels},
        "spec": {"nodeName": NODE, "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }


class Cluster:
    """A controller's cache and telemetry, and an agent's node; what both count and say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.patch, self.folder = monkeypatch.setattr, tmp_path
        self.now_s, self.said = NOW_S, list[Mapping[str, str]]()
        writer: Any = SimpleNamespace(event=lambda _: None)
        self.store = ObjectCache(lambda _: None, over=self.over, wall=lambda: self.now_s)
        self.story = ControllerTelemetry(self.store, writer, lambda: self.now_s)
        self.story.leads = lambda: True
        self.story._events.publish = self._publish  # type: ignore[method-assign,assignment]
        server: Any = SimpleNamespace(get=lambda _: pod_object())
        self.events = OverEvents(server, self.store, self.story.over)
        self.losses: dict[str, int] = {}
        self.full: dict[int, frozenset[str]] = {}
        self.agent = OverPods(lambda: self.losses, lambda: self.full)
        pod = pod_of(pod_object())
        here = SimpleNamespace(pods=(pod,))
        self.watch: Any = SimpleNamespace(here=here, pods={Pid(MINE): UID})

    def over(self, error: OverBound) -> None:
        """As `Controller._over`."""
        over_bounds.count(error.what)
        self.story.over(error)

    def _publish(
        self, _: str, about: Mapping[str, str], reason: str, text: str, warning: bool
    ) -> None:
        assert reason == "KcoverOverBound"
        assert not (warning and about["kind"] == "Pod"), "that would ask for a restart"
        self.said.append({**about, "text": text})

    def report(self, *skipped_logs: str, at_s: float = 100.0) -> tuple[OverPod, ...]:
        """What the agent found goes to the controller."""
        found = self.agent.update([self.watch], skipped_logs, int(at_s * 1e9))
        report = FaultReport(NODE, self.now_s, 1, over=found)
        self.store.host_reports[NODE] = ReceivedReport(report, self.now_s)
        self.events.reconcile(NODE)
        return found


def too_large_a_pod(cluster: Cluster) -> None:
    labels = {f"{number:06x}": "" for number in range(2000)}
    Pods(pod_cache._key_of, cluster.over).take(Event(Change.SET, pod_object(**labels)))


def too_many_pods(cluster: Cluster) -> None:
    cluster.patch(pod_cache, "_MOST_OF_ONE_BYTES", 4000)
    pods = Pods(pod_cache._key_of, cluster.over)
    for number in range(50):
        pods.take(Event(Change.SET, pod_object(f"p{number}")))


def too_many_policies(cluster: Cluster) -> None:
    for number in range(101):
        cluster.store.on_policy(Event(Change.SET, policy_object("team", f"p{number}")))


def too_large_an_incident(cluster: Cluster) -> None:
    finalizers = (f"example.org/{number:0200}" for number in range(100))
    cluster.store.on_incident(Event(Change.SET, incident("team", "i", *finalizers)))


def too_many_incidents(cluster: Cluster) -> None:
    cluster.patch(incident_bounds, "_MOST_OF_ONE_BYTES", 4000)
    store = ObjectCache(lambda _: None, over=cluster.over, wall=lambda: cluster.now_s)
    for number in range(50):
        store.on_incident(Event(Change.SET, incident("team", f"i{number}")))


def too_many_events(cluster: Cluster) -> None:
    events = KcoverEvents(FakePods(), cluster.store, over=cluster.over)  # type: ignore[arg-type]
    for number in range(TRIGGERS_OF_ONE + 1):
        events.on_event(asks("team", f"p{number}", cluster.now_s))


def too_many_descriptors(cluster: Cluster) -> None:
    folder = cluster.folder / str(MINE) / "fd"
    folder.mkdir(parents=True)
    for number in range(9):
        (folder / str(number)).symlink_to("/nowhere")
    cluster.patch(open_files, "_MOST_LINKS", (4,))
    open_files.read([Pid(MINE)], frozenset({"/dev/x"}), proc=cluster.folder)


def too_many_mappings(cluster: Cluster) -> None:
    lines = [
        f"{2 * number:x}000-{2 * number + 1:x}000 r-xp 00000000 00:01 {number} /lib/l{number}"
        for number in range(1, 5000)
    ]
    cluster.patch(bounded, "lines", lambda *_: iter(lines))
    assert len(stack_words.ProcessMemory().modules(Pid(MINE))) < 5000


def too_large_a_file(cluster: Cluster) -> None:
    file = cluster.folder / "maps"
    file.write_bytes(b"line\n" * 1000)
    real = open

    def opened(path: object, *rest: Any, **options: Any) -> Any:
        return real(file if str(path) == f"/proc/{MINE}/mountinfo" else path, *rest, **options)  # type: ignore[call-overload]

    cluster.patch("builtins.open", opened)
    bounded.read_bytes(f"/proc/{MINE}/mountinfo", 1000)


def full_table(what: str) -> Callable[[Cluster], None]:
    def fill(cluster: Cluster) -> None:
        counts = dict.fromkeys(owners.SHARES, 0) | {what: owners.SHARES[what]}
        value = (0, counts["processes"], counts["threads"], 0, 0, counts["sockets"])
        key = owners.of_pod(UID).to_bytes(8, sys.byteorder)
        table: Any = {key: owners._COUNTS.pack(*value)}
        cluster.full, cluster.losses = dict(owners.full(table)), {"lost": 1}

    return fill


def too_fast_a_log(cluster: Cluster) -> None:
    def turn(_: object) -> LogTurn:
        log = ContainerLog(pod_uid=UID, container="c", start=0, skipped_bytes=7)
        return LogTurn(logs=(log,), skipped_bytes=7)

    source: Any = SimpleNamespace(starts=0, turn=turn)
    logs = LogWatch(source, print)
    logs.turn()
    logs.turn()
    (uid,) = logs.taken_skipped()
    assert not logs.taken_skipped(), "it was skipped once"
    cluster.report(uid)


EXCEEDED: dict[str, Callable[[Cluster], None]] = {
    "pod": too_large_a_pod,
    "pods": too_many_pods,
    "policies": too_many_policies,
    "incident": too_large_an_incident,
    "incidents": too_many_incidents,
    "events": too_many_events,
    "descriptors": too_many_descriptors,
    "mappings": too_many_mappings,
    "file": too_large_a_file,
    "processes": full_table("processes"),
    "threads": full_table("threads"),
    "sockets": full_table("sockets"),
    "log": too_fast_a_log,
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    over_bounds.drained()
    return Cluster(monkeypatch, tmp_path)


@pytest.mark.parametrize("what", BOUNDS)
def test_bounds__what_is_over_each_of_them_is_counted_and_named_in_an_event(
    cluster: Cluster, what: str
) -> None:
    before = over_bounds.counts()[what]
    EXCEEDED[what](cluster)
    if what in OF_PODS and what != "log":
        (found,) = cluster.report()
        assert (found.uid, found.what) == (UID, (what,))
    (family,) = OverBounds().collect()
    counted = {sample.labels["what"]: sample.value for sample in family.samples}
    assert counted[what] > before
    assert cluster.said
    about = cluster.said[0]
    assert about["namespace"] == "team"
    if what in OF_PODS:
        assert (about["name"], about["uid"]) == ("p", UID)
        assert BOUNDS[what] in about["text"]


def test_bounds__are_listed_where_they_are_looked_up() -> None:
    assert set(EXCEEDED) == set(BOUNDS)
    assert set(OF_PODS) < set(BOUNDS)
    page = (ROOT / "docs/threat-model.md").read_text()
    assert [what for what in BOUNDS if f"`{what}`" not in page] == []
    defined = dict(
        re.findall(
            r"^#define MAX_(\w+)\s+(\d+)$", (ROOT / "bpf/maps.bpf.h").read_text(), re.MULTILINE
        )
    )
    shares = {name.lower(): int(number) // 8 for name, number in defined.items()}
    assert owners.SHARES.items() <= shares.items()


def test_over_events__one_pod_is_named_once_an_hour_and_none_of_another_node(
    cluster: Cluster,
) -> None:
    for _ in range(3):
        over_bounds.count("mappings", MINE)
        cluster.report()
    assert len(cluster.said) == 1
    cluster.now_s += OVER_SAID_S + 1.0
    cluster.report()
    assert len(cluster.said) == 2
    stranger = FaultReport("n2", cluster.now_s, 1, over=(OverPod("team", "p", UID, ("file",)),))
    cluster.store.host_reports["n2"] = ReceivedReport(stranger, cluster.now_s)
    cluster.events.reconcile("n2")
    assert len(cluster.said) == 2


def test_over_pods__of_processes_that_are_no_pods_nothing_is_said_and_it_ends(
    cluster: Cluster,
) -> None:
    over_bounds.add({"file": 1, "pids": [[MINE + 1, "file"], [MINE, "file"], [MINE, "pods"], 7]})
    assert [pod.what for pod in cluster.report(at_s=100.0)] == [("file",)]
    assert cluster.report(at_s=100.0 + OVER_REPORTED_S)
    assert not cluster.report(at_s=101.0 + OVER_REPORTED_S)


def test_bounds__namespaces_that_exceeded_one_long_ago_do_not_silence_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(monkeypatch, tmp_path)

    def exceed(namespace: str) -> None:
        about = {"kind": "Job", "namespace": namespace, "name": "j"}
        cluster.story.over(OverBound("pods", about, "too many"))

    for number in range(telemetry._MOST_OVER):
        exceed(f"team-{number}")
    exceed("late")
    assert len(cluster.said) == telemetry._MOST_OVER, "within the interval there is a bound"
    cluster.now_s += OVER_SAID_S
    exceed("late")
    exceed("team-0")
    assert [said["namespace"] for said in cluster.said[telemetry._MOST_OVER :]] == [
        "late",
        "team-0",
    ]
