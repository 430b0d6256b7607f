"""From a job to what is reported of it, and back to the words of the schema."""

from dataclasses import replace

from kcover_ebpf.api.fault_report import FaultReport, object_of, report_of
from kcover_ebpf.diagnosis.history.stacks import unbuilt
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.gang.rank_report import verdict_of, with_snapshots
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Culprit
from tests.unit.support.link_builders import edge
from tests.unit.support.scripted_job import Proc, Stage


def ranks_of(job: Job, pods: dict[Pid, str]) -> tuple[RankSnapshot, ...]:
    return with_snapshots(FaultReport(node="n", time_s=1.0, sequence=1), job, pods).ranks


def hung() -> Stage:
    stage = Stage(world=4, here=3)
    stage.run(20)
    stage.become(stage.rank(1), "stopped")
    for rank in (0, 2):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns)
    stage.run(8)
    return stage


def test_with_snapshots__the_ranks_of_a_hang() -> None:
    stage = hung()
    pods = {Pid(proc.pid): f"u-{proc.rank}" for proc in stage.procs.values()}
    ranks = {rank.rank: rank for rank in ranks_of(stage.job, pods)}
    assert set(ranks) == {0, 1, 2}
    stopped = ranks[1]
    assert (stopped.pod_uid, stopped.role, stopped.state) == ("u-1", Role.RANK, State.STOPPED)
    assert stopped.age_s is not None
    assert 6 <= stopped.age_s <= 9
    assert stopped.world_size == 4
    assert all(rank.sockets for rank in ranks.values())
    assert all(rank.threshold_s is not None for rank in ranks.values())
    report = FaultReport(node="n", time_s=1.0, sequence=1, ranks=tuple(ranks.values()))
    assert report_of(object_of(report, "team", "r")) == report


def test_with_snapshots__builds_are_left_out_so_that_agents_of_two_versions_agree() -> None:
    stage = hung()
    built = tuple(f"libtorch.so~0a1b2c3d+{at:x}" for at in range(8))
    stage.become(stage.rank(0), "futex", stack=built)
    stage.run(4)
    ranks = {rank.rank: rank for rank in ranks_of(stage.job, {Pid(100): "u"})}
    assert stage.job.snapshot().ranks[Pid(100)].stack == built
    assert ranks[0].stack == unbuilt(built)


def test_with_snapshots__a_process_of_no_pod_is_left_out() -> None:
    stage = hung()
    assert [rank.pod_uid for rank in ranks_of(stage.job, {Pid(100): "u"})] == ["u"]


def test_with_snapshots__a_rank_that_ended_says_how() -> None:
    stage = Stage(world=4, here=2)
    stage.run(20)
    stage.exit(stage.rank(0), signal=9)
    stage.run(2)
    ranks = {rank.rank: rank for rank in ranks_of(stage.job, {Pid(100): "u", Pid(101): "v"})}
    assert (ranks[0].exit, ranks[0].sockets) == ("signal 9", ())
    assert ranks[1].exit is None


def test_verdict_of__the_verdict_names_pod_and_node() -> None:
    stage = hung()
    reported = stage.verdicts[-1]
    found = verdict_of(reported, "n1", reported.since_s + 12, {Pid(101): "u-1"}, {"u-1": "train-1"})
    assert found.since_s == reported.since_s
    assert found.culprit is not None
    assert (found.culprit.pod, found.culprit.pod_uid, found.culprit.node, found.culprit.rank) == (
        "train-1",
        "u-1",
        "n1",
        1,
    )
    assert found.unobserved == ("1 of 4 ranks are not on this host",)


def test_verdict_of__a_link_keeps_both_of_its_ends() -> None:
    link = replace(hung().verdicts[-1], culprit=Culprit(0, or_rank=3, device="eth0"))
    found = verdict_of(link, "n1", link.since_s, {}, {})
    assert found.culprit == Culprit(0, or_rank=3, device="eth0")


def listening(pid: int, port: int) -> SocketSample:
    return edge(Pid(pid), 77, state="LISTEN", local=("0.0.0.0", port), remote=("", 0))


def listens(stage: Stage, pods: dict[Pid, str]) -> dict[str, tuple[int, ...]]:
    made = with_snapshots(FaultReport(node="n", time_s=1.0, sequence=1), stage.job, pods)
    assert report_of(object_of(made, "team", "r")) == made
    return {entry.pod_uid: entry.ports for entry in made.listens}


def test_with_snapshots__ports_of_a_pod_are_those_of_its_ranks_and_launchers() -> None:
    stage = Stage(world=4, here=2)
    stage.add(Proc(50, argv=("torchrun", "train.py"), mode="tick"))
    pods = {Pid(50): "u-0", Pid(100): "u-0", Pid(101): "u-1"}
    stage.run(20)
    for pid, port in ((50, 29500), (100, 4000), (101, 5000)):
        stage.feed(listening(pid, port))
    stage.feed(replace(listening(100, 3000), fd=78))
    stage.run(2)
    assert listens(stage, pods) == {"u-0": (3000, 4000, 29500), "u-1": (5000,)}
    for port in range(6000, 6064):
        stage.feed(replace(listening(101, port), fd=port))
    assert listens(stage, pods) == {"u-0": (3000, 4000, 29500)}, "a pod with very many is left out"


def test_with_snapshots__nothing_is_said_of_a_pod_whose_connections_were_not_read() -> None:
    stage = Stage(world=4, here=2)
    stage.connected = False
    stage.run(20)
    stage.feed(listening(100, 4000))
    assert listens(stage, {Pid(100): "u-0", Pid(101): "u-1"}) == {}
