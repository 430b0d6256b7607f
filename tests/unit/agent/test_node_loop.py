"""The loop of a node: each fact goes to the gang whose process it is about, and to no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from kcover_ebpf.agent import node_loop
from kcover_ebpf.agent.containers import Containers, RunningContainer
from kcover_ebpf.agent.job_memories import JobMemories
from kcover_ebpf.agent.node_loop import GangWatch, NodeLoop
from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.devices.watch import DeviceWatch
from kcover_ebpf.facts.devices import AnnouncedFault, DeviceFact, DeviceFault, PortChange
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import Fact, ProcessExit, ProcessFork, ProcessTotals, SampleRequest
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.settings import Settings
from kcover_ebpf.watching import loop
from tests.unit.support.fake_thread_reader import FakeThreadReader

JOB = "training.kubeflow.org/job-name"


class FakeNodeSampler:
    def __init__(self) -> None:
        self.watched: set[int] = set()
        self.asked: list[set[int]] = []
        self.passes: list[list[Fact]] = []
        self.waiting: Callable[[float], list[Fact]] = lambda _: []

    def expect_pass(self, period_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> list[Fact]:
        return self.waiting(timeout_s)

    def watch(self, pid: Pid, owner_id: int = 0) -> None:
        self.watched.add(pid)

    def unwatch(self, pid: Pid) -> None:
        self.watched.discard(pid)

    strangers = 0, 0

    def request(self, pid: Pid, wanted_request: SampleRequest) -> None:
        pass

    def sample(self, ranks: Collection[Pid]) -> list[Fact]:
        self.asked.append(set(ranks))
        return self.passes.pop(0) if self.passes else []


class FakeDeviceWatch:
    nccl = None

    def __init__(self) -> None:
        self.polled: list[DeviceFact | AnnouncedFault] = []

    def tick(self, members: Collection[Pid]) -> list[DeviceFact | AnnouncedFault]:
        polled, self.polled = self.polled, []
        return polled

    def observe(self, fact: Fact, members: Collection[Pid]) -> list[DeviceFact]:
        return []

    def drilled(self, pid: Pid) -> list[DeviceFault]:
        return [DeviceFault(1_000 * NS, pid, "0000:5d:00.0", "Xid 94", "drilled", ends_job=True)]


class FakeNodeListener:
    def __init__(self) -> None:
        self.passes = 0
        self.node_facts: list[Fact] = []
        self.announced: list[tuple[AnnouncedFault, frozenset[str]]] = []
        self.lags_s: list[float] = []

    def on_lag(self, lag_s: float) -> None:
        self.lags_s.append(lag_s)

    def on_pass(self, gangs: Iterable[GangWatch]) -> None:
        self.passes += 1

    def on_node_fact(self, fact: Fact) -> None:
        self.node_facts.append(fact)

    def on_announced(self, fault: AnnouncedFault, pods: frozenset[str]) -> None:
        self.announced.append((fault, pods))


class Bench:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000 * NS
        self.kernel, self.registry, self.ears = (
            FakeNodeSampler(),
            PodRegistry("n1"),
            FakeNodeListener(),
        )
        self.devices = FakeDeviceWatch()
        self.running: dict[str, set[int]] = {}
        self.held: set[str] = set()
        self.notes: list[Pid] = []
        self.environ = {"WORLD_SIZE": "8"}
        self.start_ns = 0
        patch.setattr("kcover_ebpf.host.procfs.boottime_ns", lambda: self.now_ns)
        patch.setattr("kcover_ebpf.host.procfs.start_ns", lambda _: self.start_ns)
        patch.setattr("kcover_ebpf.host.procfs.read_process", self._read)
        patch.setattr(loop, "ThreadReader", FakeThreadReader)

        patch.setattr(node_loop, "processes", self._processes)
        self.loop = NodeLoop(
            cast("KernelSampler", self.kernel),
            cast("DeviceWatch", self.devices),
            self.registry,
            cast("Containers", self),
            Settings(),
            self.ears,
            is_stopped_by_us=lambda gang: gang.name in self.held,
            memories=JobMemories(Path("/nowhere/jobs.json")),
            drilled=lambda: self.notes.pop(0) if self.notes else None,
        )

    def _read(self, pid: int, variables: Collection[str]) -> ProcessSeen:
        environ = {"RANK": str(pid), **self.environ}
        environ = {name: environ[name] for name in environ.keys() & set(variables)}
        return ProcessSeen(self.now_ns, Pid(pid), Pid(1), "python3", ("python3", "t.py"), environ)

    def of_ranks(self, pod: Pod) -> list[RunningContainer]:
        return cast("list[RunningContainer]", [pod])

    def _processes(self, found: list[Any]) -> set[int]:
        return {pid for pod in found for pid in self.running.get(pod.name, ())}

    def pod(self, name: str, job: str, *pids: int, **metadata: Any) -> None:
        self.running[name] = set(pids)
        identity = {"name": name, "namespace": "team", "uid": f"u-{name}", "labels": {JOB: job}}
        made: dict[str, Any] = {
            "metadata": {**identity, **metadata},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        }
        self.registry.on_pod(Event(Change.SET, made))

    def step(self, *facts: Fact, seconds: float = 4) -> None:
        self.now_ns += int(seconds * NS)
        self.kernel.passes.append(list(facts))
        self.loop.step()

    def gang(self, job: str) -> GangWatch:
        return next(gang for gang in self.loop.gangs if gang.here.gang.name == job)

    def ended(self, pid: int) -> ProcessExit:
        return ProcessExit(self.now_ns, Pid(pid), 1, 0, False, "python3")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def failures(watch: GangWatch) -> list[int]:
    return [failure.pid for failure in watch.watch.job.announced.failures]


def test_node_loop__processes_of_all_gangs_are_sampled_by_one_sampler(bench: Bench) -> None:
    bench.pod("a-0", "a", 10, 11)
    bench.pod("b-0", "b", 20)
    bench.step()
    bench.step()
    assert bench.kernel.watched == {10, 11, 20}
    assert bench.kernel.asked[-1] <= {10, 11, 20}
    assert bench.gang("a").pods == {10: "u-a-0", 11: "u-a-0"}


@pytest.mark.parametrize(("parts", "rank"), [("1", 5), ("2", None)])
def test_node_loop__the_index_of_a_pod_is_a_rank_where_one_job_makes_the_gang(
    bench: Bench, parts: str, rank: int | None
) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/global-replicas": parts}
    bench.environ = {"RANK": "", "JOB_COMPLETION_INDEX": "5"}
    bench.pod("s-0", "s", 10, labels=labels)
    bench.step()
    members = bench.gang("s").watch.job.members
    members.classify()
    assert [view.membership and view.membership.rank for view in members.ranks.values()] == [rank]


def test_node_loop__a_death_concerns_its_own_gang_alone(bench: Bench) -> None:
    bench.pod("a-0", "a", 10)
    bench.pod("b-0", "b", 20)
    bench.step()
    bench.step(bench.ended(20))
    assert failures(bench.gang("a")) == []
    assert failures(bench.gang("b")) == [20]


def test_node_loop__who_ended_and_is_listed_still_is_not_watched_again(bench: Bench) -> None:
    bench.pod("a-0", "a", 10, 11)
    bench.step()
    bench.start_ns = bench.now_ns - NS
    bench.step(bench.ended(11))
    bench.kernel.unwatch(Pid(11))
    bench.step()
    assert bench.kernel.watched == {10}
    bench.start_ns = bench.now_ns + NS
    bench.step(seconds=9)
    assert bench.kernel.watched == {10, 11}, "another process has its number"


def test_node_loop__a_child_belongs_to_the_pod_of_its_parent(bench: Bench) -> None:
    bench.pod("a-0", "a", 10)
    bench.pod("a-1", "a", 20)
    bench.step()
    bench.step(ProcessFork(bench.now_ns, Pid(20), Pid(21), "python3"))
    assert bench.gang("a").pods[Pid(21)] == "u-a-1"
    bench.step(bench.ended(21))
    assert Pid(21) not in bench.gang("a").watch.members


def test_port_change__what_concerns_no_watched_process_is_reported_as_a_fact_of_the_node(
    bench: Bench,
) -> None:
    fact = PortChange(bench.now_ns, "mlx5_0/1", "0000:5d:00.0", False, "down")
    bench.pod("a-0", "a", 10)
    bench.step(fact, bench.ended(99))
    assert fact in bench.ears.node_facts
    assert failures(bench.gang("a")) == []


def test_node_loop__a_fault_of_a_device_is_the_nodes_once_and_each_holders(bench: Bench) -> None:
    bench.pod("a-0", "a", 10)
    bench.pod("b-0", "b", 20)
    bench.step()
    holders = frozenset({Pid(10), Pid(20)})
    fault = AnnouncedFault(
        bench.now_ns, "0000:5d:00.0", "Xid 79", "it fell off", True, True, holders
    )
    bench.devices.polled = [fault, *fault.of_holders]
    bench.step()
    assert bench.ears.announced == [(fault, frozenset({"u-a-0", "u-b-0"}))]
    for gang, pid in (("a", 10), ("b", 20)):
        (of_job,) = bench.gang(gang).watch.job.faults.reported
        assert (of_job.pid, of_job.code, of_job.ends_job) == (pid, "Xid 79", True)


def test_node_loop__a_gang_that_is_gone_is_not_watched_any_more(bench: Bench) -> None:
    bench.pod("a-0", "a", 10)
    bench.step()
    bench.registry.on_pod(Event(Change.GONE, {"metadata": {"name": "a-0", "uid": "u-a-0"}}))
    bench.step()
    assert bench.kernel.watched == set()
    assert list(bench.loop.gangs) == []


def test_node_loop__how_a_pod_ends_that_is_being_deleted_is_no_fault(bench: Bench) -> None:
    bench.pod("a-0", "a", 10)
    bench.step()
    bench.pod("a-0", "a", 10, deletionTimestamp="2026-01-01T00:00:00Z")
    bench.step()
    bench.step(bench.ended(10))
    assert failures(bench.gang("a")) == []


def test_gang__what_we_kill_ourselves_is_no_fault(bench: Bench) -> None:
    bench.pod("a-0", "a", 10)
    bench.step()
    bench.loop.forget(Gang(GangId.of("team", {JOB: "a"}), "a", "PyTorchJob"))
    bench.step(bench.ended(10), seconds=0.1)
    assert failures(bench.gang("a")) == []
    # the next start is watched again
    bench.running["a-0"] = {30}
    bench.step()
    assert bench.gang("a").watch.members == {30}


def test_node_loop__a_gang_that_we_hold_is_neither_judged_nor_joined(bench: Bench) -> None:
    bench.held.add("a")
    bench.pod("a-0", "a", 10)
    bench.step()
    assert bench.gang("a").watch.members == set()
    assert bench.gang("a").watch.tracker.current is None
    bench.held.clear()
    bench.step()
    assert bench.gang("a").watch.members == {10}


def test_node_loop__a_child_whose_fork_was_lost_belongs_to_the_pod_of_its_parent(
    bench: Bench,
) -> None:
    bench.pod("a-0", "a", 10)
    bench.pod("b-0", "b", 20)
    bench.step()
    bench.step(ProcessTotals(bench.now_ns, Pid(21), Pid(20), *(0,) * 7))
    assert bench.gang("b").pods[Pid(21)] == "u-b-0"
    bench.step(bench.ended(21))
    assert failures(bench.gang("b")) == [21]
    assert failures(bench.gang("a")) == []


def test_node_loop__a_drill_names_a_process_with_an_xid_if_its_pod_consents(bench: Bench) -> None:
    bench.pod("a-0", "a", 10)
    bench.pod("b-0", "b", 20, labels={JOB: "b", "kcover.io/drill": "true"})
    bench.step()
    bench.notes += [Pid(10), Pid(20), Pid(30)]
    for _ in range(3):
        bench.step()
    assert not bench.gang("a").watch.job.faults.reported
    (fault,) = bench.gang("b").watch.job.faults.reported
    assert (fault.pid, fault.code) == (20, "Xid 94")
    assert bench.ears.announced == [], "nothing is said of the node"


def test_run__what_the_loop_lags_behind_is_counted_from_when_a_pass_was_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It oversleeps by 0.2 s, and then its pass takes 0.3 s."""

    def oversleep(timeout_s: float) -> list[Fact]:
        bench.now_ns += int((timeout_s + 0.2) * NS)
        return []

    def take(_: Collection[Pid]) -> list[Fact]:
        bench.now_ns += int(0.3 * NS)
        return []

    bench.kernel.waiting = oversleep
    monkeypatch.setattr(bench.kernel, "sample", take)
    bench.loop.run(lambda: len(bench.ears.lags_s) == 3)
    assert bench.ears.lags_s == pytest.approx([0.5] * 3)
