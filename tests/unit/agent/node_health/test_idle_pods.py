"""Pods that keep GPUs for nothing: reported by the agent, also after its restart; their owner reads it in an Event."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent.containers import RunningContainer, cpu_seconds
from kcover_ebpf.agent.node_health.gpu_pods import GpuPod
from kcover_ebpf.agent.node_health.idle_pods import IdlePods
from kcover_ebpf.api.codec import decode, encode
from kcover_ebpf.api.fault_report import FaultReport, IdlePod
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.idle_events import IdleEvents, text_of
from kcover_ebpf.devices.telemetry.reading import GpuReading
from kcover_ebpf.devices.telemetry.use import GpuState
from kcover_ebpf.errors import ApiError, NotFound
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.gang.gang_snapshot import ReceivedReport

HOUR_S = 3600.0
START_S = 1_800_000_000.0


def pod(name: str = "notebook", node: str = "n1", phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"u-{name}"},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


class Node:
    """A node with two GPUs and one pod, read every minute."""

    def __init__(self, file: Path) -> None:
        self.file, self.now_s = file, START_S
        self.pods: dict[str, Pod] = {"u-notebook": pod_of(pod())}
        self.uses = {"GPU-0": GpuUse.MEMORY_HELD, "GPU-1": GpuUse.WORKING}
        self.held: tuple[str, ...] = ("GPU-0",)
        self.cores: float | None = 0.02
        self.used_s = 0.0
        self.synced = True
        self.start()

    def start(self) -> None:
        """An agent begins."""
        self.idle = IdlePods(
            self.file, 48 * HOUR_S, self.pods.get, lambda _: self._cpu_s(), lambda: self.synced
        )

    def _cpu_s(self) -> float | None:
        return None if self.cores is None else self.used_s

    def spend(self, hours: float, step_s: float = 600.0) -> tuple[IdlePod, ...]:
        end_s = self.now_s + hours * HOUR_S
        while self.now_s < end_s:
            self.now_s += step_s
            self.used_s += (self.cores or 0.0) * step_s
            states = [GpuState(GpuReading("0", uuid), use, 0) for uuid, use in self.uses.items()]
            holders = [GpuPod(GpuReading("0", uuid), self.pods["u-notebook"]) for uuid in self.held]
            self.idle.update(states, holders, self.now_s)
        return self.idle.reported(self.now_s)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "state/idle.json")


def test_idle_pods__a_pod_is_reported_after_two_days(node: Node) -> None:
    assert node.spend(47) == ()
    (found,) = node.spend(2)
    assert (found.namespace, found.name, found.uid, found.gpus) == (
        "team",
        "notebook",
        "u-notebook",
        ("GPU-0",),
    )
    assert 48 * HOUR_S < found.age_s < 50 * HOUR_S
    assert found.cpu_cores == 0.02
    assert node.idle.idle_s()["team", "notebook"] == pytest.approx(found.age_s)


def test_idle_pods__one_kernel_begins_anew(node: Node) -> None:
    node.spend(47)
    node.uses["GPU-0"] = GpuUse.LOW_POWER
    node.spend(0.1)
    node.uses["GPU-0"] = GpuUse.IDLE
    assert node.spend(47) == ()
    assert len(node.spend(2)) == 1


def test_idle_pods__all_gpus_of_a_pod_must_be_idle(node: Node) -> None:
    node.held = ("GPU-0", "GPU-1")
    assert node.spend(60) == ()


def test_idle_pods__a_pod_that_works_on_its_cpus_is_not_idle(node: Node) -> None:
    node.cores = 0.5
    assert node.spend(60) == ()
    node.cores = 0.05
    assert node.spend(47) == ()
    assert len(node.spend(2)) == 1


def test_idle_pods__where_cpu_times_are_not_known_gpus_decide(node: Node) -> None:
    node.cores = None
    (found,) = node.spend(49)
    assert found.cpu_cores is None


def test_idle_pods__a_pod_that_let_go_of_its_gpu_still_keeps_it(node: Node) -> None:
    node.spend(1)
    node.held = ()
    (found,) = node.spend(49)
    assert found.gpus == ("GPU-0",)


def test_idle_pods__it_outlives_the_agent(node: Node) -> None:
    node.spend(40)
    node.now_s += 600
    node.start()
    node.synced = False
    node.spend(0.1)
    node.synced = True
    assert len(node.spend(9)) == 1, "40 hours before the restart count"


def test_idle_pods__hours_of_which_nothing_is_known_do_not_count(node: Node) -> None:
    node.spend(40)
    node.now_s += 2 * HOUR_S
    node.start()
    assert node.spend(47) == ()
    assert len(node.spend(2)) == 1


def test_idle_pods__unknown_is_not_idle(node: Node) -> None:
    node.spend(40)
    node.uses["GPU-0"] = GpuUse.UNKNOWN
    assert node.spend(20) == ()
    node.uses["GPU-0"] = GpuUse.IDLE
    assert node.spend(9) == (), "the clock began anew"


def test_idle_pods__pods_that_are_gone_are_forgotten(node: Node) -> None:
    assert len(node.spend(49)) == 1
    node.pods["u-notebook"] = replace(node.pods["u-notebook"], phase="Succeeded")
    node.held = ()
    assert node.spend(0.5) == ()
    assert node.idle.idle_s() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"holders": [{"uid": 3}]}', '{"holders": 1}'])
def test_idle_pods__a_file_that_cannot_be_read_costs_the_past_only(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "idle.json").write_text(text)
    assert len(Node(tmp_path / "idle.json").spend(49)) == 1


def test_cpu_seconds__the_cpu_time_of_containers(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    one = RunningContainer("u", "a", tmp_path)
    assert cpu_seconds([one, one]) == 5.0
    assert cpu_seconds([RunningContainer("u", "b", tmp_path / "gone")]) is None


class FakePodServer:
    """The pods that there are, and the Events that were written."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {f"/api/v1/namespaces/team/pods/{p['metadata']['name']}": p for p in pods}
        self.written: list[tuple[dict[str, str], str, str, bool]] = []
        self.now_s = START_S
        self.is_down = False
        self.store = ObjectCache(print, wall=lambda: self.now_s)
        api: Any = self
        self.events = IdleEvents(api, self.store, lambda *said: self.written.append(said))

    def get(self, path: str) -> dict[str, Any]:
        if self.is_down:
            raise ApiError("no answer")
        if path not in self.pods:
            raise NotFound("not found")
        return self.pods[path]

    def report(self, *idle: IdlePod, node: str = "n1") -> None:
        report = FaultReport(node, self.now_s, 1, idle=idle)
        again = decode(FaultReport, encode(report))
        self.store.host_reports[node] = ReceivedReport(again, self.now_s)
        self.events.reconcile(node)


IDLE = IdlePod("team", "notebook", "u-notebook", 2.1 * 86400, ("GPU-0",), 0.02)


def test_idle_pods__the_owner_finds_an_event_once_a_day() -> None:
    server = FakePodServer(pod())
    for _ in range(3):
        server.report(IDLE)
        server.now_s += 60
    ((about, reason, text, warning),) = server.written
    assert (about["kind"], about["namespace"], about["name"], about["uid"]) == (
        "Pod",
        "team",
        "notebook",
        "u-notebook",
    )
    assert (reason, warning) == ("KcoverGPUIdle", False), "a Warning would ask for a recovery"
    assert text == (
        "no kernel has run on GPU GPU-0 of this pod for 2.1 days, and its containers use 0.02 CPUs; end it if it is "
        "not needed. No action is taken."
    )
    server.now_s += 86400
    server.report(IDLE)
    assert len(server.written) == 2


def test_idle_pods__a_server_that_did_not_answer_is_asked_again() -> None:
    server = FakePodServer(pod())
    server.is_down = True
    with pytest.raises(ApiError):
        server.report(IDLE)
    server.is_down = False
    server.report(IDLE)
    assert len(server.written) == 1


@pytest.mark.parametrize(
    "there", [pod(node="n2"), pod() | {"metadata": pod()["metadata"] | {"uid": "another"}}, None]
)
def test_idle_pods__an_agent_reports_pods_of_its_node_only(there: dict[str, Any] | None) -> None:
    server = FakePodServer(*([there] if there else []))
    server.report(IDLE)
    server.report(replace(IDLE, namespace="../kube-system", uid="x"))
    assert server.written == []


def test_idle_pods__a_stale_report_says_nothing() -> None:
    server = FakePodServer(pod())
    server.store.host_reports["n1"] = ReceivedReport(
        FaultReport("n1", START_S, 1, idle=(IDLE,)), START_S - 3600
    )
    server.events.reconcile("n1")
    assert server.written == []


def test_text_of__words_for_several_gpus_and_hours() -> None:
    idle = replace(IDLE, gpus=("GPU-0", "GPU-1"), cpu_cores=None)
    assert text_of(idle, 7200.0).startswith(
        "no kernel has run on 2 GPUs (GPU-0, GPU-1) of this pod for 2.0 hours, and its CPU usage is unknown"
    )
