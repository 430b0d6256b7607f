"""Archives of invented incidents, from two nodes to ten thousand ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kcover_ebpf.api.fault_report import FaultReport, PodRef, ReportedDeviceFault, ReportedJob
from kcover_ebpf.api.incident import Incident, JobRef, Lost, Moment, Phase, Status
from kcover_ebpf.api.log_report import ContainerLog, LogFinding
from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.archive.node_part import ArchivedThread, EvidenceTrigger, GroupPressure, NodePart
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    FailureClass,
    Verdict,
    VerdictKind,
)
from tests.unit.support import report_builders as build

BEGIN_S = 1_767_225_600.0
REPORT_S = BEGIN_S + 12.0
Text = Callable[[str], str]


def _verdict(culprit: int, world: int, text: Text) -> Verdict:
    return Verdict(
        kind=VerdictKind.HUNG,
        cause=Cause.STORAGE,
        since_s=BEGIN_S,
        deadline_s=BEGIN_S + 1800.0,
        certainty=Certainty.INFERRED,
        acts_at_s=BEGIN_S + 12.0,
        acts_why=text("the longest silence of this job that ended by itself was 9 s"),
        graph=(
            text(f"rank 0 waits for rank {culprit}"),
            text(f"rank {culprit} waits for storage"),
        ),
        culprit=Culprit(
            rank=culprit,
            pid=1000 + culprit,
            pod=text(f"train-{culprit}"),
            node=text(node_of(culprit)),
        ),
        evidence=(
            Evidence(
                EvidenceKind.SINK,
                text(f"rank {culprit} is at the end of all waits"),
                text("n0"),
            ),
            Evidence(EvidenceKind.STATE, text("its write has not returned for 12 s"), text("n0")),
        ),
        victims=tuple(rank for rank in range(world) if rank != culprit),
    )


def status(culprit: int, world: int, text: Text = str, phase: Phase = Phase.RECOVERED) -> Status:
    """A rank that waits for storage; the job was restarted in place."""
    moments = (
        Moment("Open", BEGIN_S + 3.0, text("HUNG storage, waiting for its patience")),
        Moment("Decided", BEGIN_S + 12.0, text("inferred")),
        Moment("ShuttingDown", BEGIN_S + 12.2, text("stopping the gang")),
        Moment("Recovering", BEGIN_S + 14.0, text("restarted in place")),
        Moment("Recovered", BEGIN_S + 21.5, text("made progress")),
    )
    return Status(
        verdict=_verdict(culprit, world, text),
        phase=phase,
        message=text("training again"),
        failure=FailureClass.STORAGE,
        timeline=moments,
        lost=Lost(3.0, 9.2, 1.8, 2.0, 7.5),
    )


def node_of(rank: int) -> str:
    """Eight ranks a node."""
    return f"gpu-node-{rank // 8:04}"


def rank_snapshot(number: int, world: int, culprit: int, text: Text) -> RankSnapshot:
    """All but the culprit wait for it."""
    is_culprit = number == culprit
    peer = Endpoint(f"10.{culprit // 200}.0.{culprit % 200}", 29500)
    mine = peer if is_culprit else Endpoint(f"10.{number // 200}.0.{number % 200}", 40000)
    far = Endpoint("10.9.9.9", 1) if is_culprit else peer
    return build.rank(
        number,
        State.STORAGE if is_culprit else State.FUTEX,
        12.0 if is_culprit else 11.5,
        pid=Pid(1000 + number),
        tid=1000 + number,
        pod_uid=f"uid-{number}",
        world_size=world,
        text=text("write in nfs_wait" if is_culprit else "futex"),
        awaits=None if is_culprit else peer,
        sockets=(SocketSnapshot(mine, far, "ESTABLISHED", unread=0 if not is_culprit else 4096),),
    )


def stack(number: int, culprit: int, text: Text) -> Stack:
    """The culprit saves a checkpoint, all others are in an all-reduce."""
    common = (text("train_step (train.py:214)"), text("main (train.py:480)"))
    inside = [f"call_{depth} (torch/distributed.py:{depth})" for depth in range(12)]
    python = (*(text(name) for name in inside), *common)
    if number == culprit:
        return Stack(
            1000 + number,
            1000 + number,
            number,
            (text("save (checkpoint.py:31)"), *common),
            (text("__write (libc.so.6)"),),
            (text("nfs_wait_on_request"), text("nfs_file_write"), text("vfs_write")),
        )
    native = (
        text("__poll (libc.so.6)"),
        text("gloo::transport::tcp::Pair::wait (libtorch_cpu.so)"),
    )
    return Stack(1000 + number, 1000 + number, number, python, native, (text("do_sys_poll"),))


def container_log(culprit: int, text: Text) -> ContainerLog:
    """Its server does not answer."""
    meaning = text("a server does not answer")
    finding = LogFinding(text("nfs_not_responding"), "storage", "error", 3, 10.0, meaning)
    return ContainerLog(f"uid-{culprit}", text("main"), 0, (finding,))


def report(ranks: range, world: int, culprit: int, text: Text) -> FaultReport:
    """What one node says; that of the culprit has a line of a log and an older fault of a GPU."""
    fault = ReportedDeviceFault(text("0000:5d:00.0"), text("xid_31"), text("MMU fault"), age_s=60.0)
    has_culprit = culprit in ranks
    return FaultReport(
        node=text(node_of(ranks[0])),
        time_s=REPORT_S,
        sequence=1,
        job=ReportedJob(text("train"), {"job": "train"}, "Job"),
        pods=tuple(PodRef(text(f"train-{rank}"), f"uid-{rank}") for rank in ranks),
        suspicious=True,
        ranks=tuple(rank_snapshot(rank, world, culprit, text) for rank in ranks),
        logs=(container_log(culprit, text),) if has_culprit else (),
        devices=(fault,) if has_culprit else (),
    )


def part(index: int, world: int, culprit: int, text: Text = str, *, full: bool = True) -> NodePart:
    """One node of eight ranks; without logs and pressure unless `full`."""
    ranks = range(index * 8, min(world, index * 8 + 8))
    number, wait = 1000 + culprit, text("write in nfs_wait")
    thread = ArchivedThread(number, number, text("python3"), "D", wait, culprit, "rank", 12.0)
    group = GroupPressure(
        text(f"train-{ranks[0]} c0ffee"), io="some avg10=93.10 avg60=1 avg300=0 total=9"
    )
    logs = {f"train-{rank}.main.log": text(f"step 41 rank {rank}\n") for rank in ranks}
    return NodePart(
        node=text(node_of(ranks[0])),
        time_s=REPORT_S + 0.4,
        trigger=EvidenceTrigger.STOP,
        version="0",
        report=report(ranks, world, culprit, text),
        stacks=tuple(stack(rank, culprit, text) for rank in ranks),
        threads=(thread,) if culprit in ranks else (),
        pressure=(group,) if full else (),
        logs=logs if full else {},
        unobserved=(text("kernel frames (they need CAP_SYS_ADMIN)"),),
    )


def archive(world: int = 16, culprit: int = 11, text: Text = str) -> Archive:
    """An incident of a job of so many ranks, all nodes' parts merged."""
    incident = Incident(
        "research",
        "train-x7k2",
        JobRef("Job", text("train"), "uid"),
        {"job": "train"},
        status=status(culprit, world, text),
    )
    count = -(-world // 8)
    parts = tuple(part(index, world, culprit, text, full=count <= 64) for index in range(count))
    return Archive("research/train", "train-x7k2", incident, parts)


def without_incident(found: Archive) -> Archive:
    """What one node wrote alone."""
    return replace(found, incident=None, parts=found.parts[-1:])
