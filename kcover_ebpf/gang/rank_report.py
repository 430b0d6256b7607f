"""Builds an agent's report on a gang from its snapshot. Pure.

Ages are seconds before the report's own time. Texts are cut to the lengths that the schema allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.api.fault_report import (
    FaultReport,
    PodPorts,
)
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.history.stacks import unbuilt
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.job_past import past_of
from kcover_ebpf.diagnosis.judge.rdma_port import own_port_errs
from kcover_ebpf.diagnosis.judge.slow_job import paces
from kcover_ebpf.facts.recorders import RankRecord, RecordedGroup
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts, Recordings
from kcover_ebpf.model.rank_snapshot import GpuSnapshot, RankPace, RankSnapshot, SocketSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, Verdict
from kcover_ebpf.tunables.sampling import SOCKETS_REPORTED

_TEXT = 1024
_RANK_TEXT = 512
_FRAME_TEXT = 256
_REASON_TEXT = 256
_MOST_RANKS = 512
_MOST_FRAMES = 32
_MOST_PODS, _MOST_PORTS = 64, 64
"""Pods whose ports are reported, and ports of one of them, at most."""
_MOST_WAITED_FOR = 64
_MOST_DEVICES = 16
"""GPUs reported for one rank, at most."""
_MOST_RECORDS = 16
"""Flight recordings reported for the ranks of one node, at most."""
_MOST_GROUPS, _MOST_MEMBERS, _MOST_CALLS = 8, 256, 2
"""Limits of one recording: groups, members of a group, and calls. A group with more members is reported without any."""


def with_snapshots(report: FaultReport, job: Job, pods: Mapping[Pid, str]) -> FaultReport:
    """The report with all that a judge of the whole gang needs of these ranks; `pods`: process to uid of its pod."""
    carried = carrying(report, job.snapshot(), pods)
    return replace(carried, silences=past_of(job), listens=_listens(job, pods))


def _listens(job: Job, pods: Mapping[Pid, str]) -> tuple[PodPorts, ...]:
    """The ports of each pod with ranks; pods of which one has no known connection are left out."""
    ports: dict[str, set[int]] = {}
    for pid, uid in pods.items():
        process = job.members.views.get(pid)
        member = None if process is None else process.membership
        if process is None or member is None or process.exit is not None:
            continue
        if member.owner is not None or member.role is Role.LAUNCHER:
            ports.setdefault(uid, set()).update(process.links.ports)
    unread = {pods.get(pid) for pid, rank in job.members.ranks.items() if not rank.links.fds}
    ranked = {pods.get(pid) for pid in job.members.ranks} - unread
    return tuple(
        PodPorts(uid, tuple(sorted(found)))
        for uid, found in sorted(ports.items())[:_MOST_PODS]
        if uid in ranked and len(found) <= _MOST_PORTS
    )


def carrying(report: FaultReport, snapshot: JobSnapshot, pods: Mapping[Pid, str]) -> FaultReport:
    """The report with this snapshot, cut to the schema; processes outside any pod are left out."""
    found = [
        _fitted(replace(process, pod_uid=uid))
        for pid, process in snapshot.processes.items()
        if (uid := pods.get(pid))
    ]
    # ranks before helpers, so that the limit takes helpers away
    found.sort(key=lambda rank: (rank.role is not Role.RANK, rank.rank or 0, rank.pid))
    return replace(
        report,
        ranks=tuple(found[:_MOST_RANKS]),
        knows_waits=snapshot.knows_waits,
        knows_cadence=snapshot.cadence_known,
        lossy=snapshot.lossy,
        collectives=_counts(snapshot.collectives),
        recorders=_recordings(snapshot.recordings),
    )


def paces_of(job: Job, pods: Mapping[Pid, str], unix_offset_s: float) -> tuple[RankPace, ...]:
    """Recent positions of the ranks, for comparison with those on other nodes; empty unless all of them train.

    `pods`: process to uid of its pod. `unix_offset_s`: unix time minus boottime.

    Empty also once a rank has left: a server whose other workers are done waits for the last one, which is not slow.
    """
    if job.attention.suspicious or not job.has_parts_elsewhere or job.members.has_ended:
        return ()
    found = paces(job.pace, job.members.ranks, job.now_ns, unix_offset_s)
    erring = own_port_errs(job.faults.ports, job.members.ranks, job.now_ns)
    return tuple(
        replace(
            pace,
            pod_uid=pods.get(Pid(pace.pid), ""),
            cause=pace.cause or (Cause.LINK if pace.pid == erring else None),
        )
        for pace in found
    )


def _recordings(recordings: Recordings | None) -> Recordings | None:
    if recordings is None:
        return None
    return Recordings(
        age_s=_rounded(recordings.age_s) or 0.0,
        records=tuple(map(_record, recordings.records[:_MOST_RECORDS])),
        unread=tuple(
            replace(recorder, reason=recorder.reason[:_REASON_TEXT])
            for recorder in recordings.unread[:_MOST_RECORDS]
        ),
    )


def _record(record: RankRecord) -> RankRecord:
    return replace(record, groups=tuple(map(_group, record.groups[:_MOST_GROUPS])))


def _group(group: RecordedGroup) -> RecordedGroup:
    return replace(
        group,
        ranks=group.ranks if len(group.ranks) <= _MOST_MEMBERS else (),
        pending=group.pending[:_MOST_CALLS],
        messages=group.messages[:_MOST_CALLS],
    )


def _counts(counts: CollectiveCounts | None) -> CollectiveCounts | None:
    if counts is None:
        return None
    reason = counts.trouble and counts.trouble[:_REASON_TEXT]
    age_s, span_s = _rounded(counts.age_s), _rounded(counts.span_s)
    unseen = counts.unseen and counts.unseen[:_REASON_TEXT]
    return replace(counts, age_s=age_s or 0.0, span_s=span_s or 0.0, trouble=reason, unseen=unseen)


def _fitted(rank: RankSnapshot) -> RankSnapshot:
    """The snapshot cut and rounded for the wire; a rank that has ended has no connections."""
    return replace(
        rank,
        text=rank.text[:_RANK_TEXT],
        age_s=_rounded(rank.age_s) or 0.0,
        sent_age_s=_rounded(rank.sent_age_s),
        received_age_s=_rounded(rank.received_age_s),
        inert_s=_rounded(rank.inert_s),
        ends_in_s=_rounded(rank.ends_in_s),
        waits_for=rank.waits_for[:_MOST_WAITED_FOR],
        stack=tuple(text[:_FRAME_TEXT] for text in unbuilt(rank.stack[:_MOST_FRAMES])),
        sockets=_most_relevant(rank.sockets) if rank.exit is None else (),
        gpu=_gpu(rank.gpu),
    )


def _gpu(gpu: GpuSnapshot | None) -> GpuSnapshot | None:
    if gpu is None:
        return None
    age_s = _rounded(gpu.use_age_s) or 0.0
    return replace(gpu, devices=gpu.devices[:_MOST_DEVICES], use_age_s=age_s)


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else max(0.0, round(age_s, 3))


def _most_relevant(sockets: Sequence[SocketSnapshot]) -> tuple[SocketSnapshot, ...]:
    found = sorted(
        sockets,
        key=lambda socket: (
            not socket.payload,
            -socket.backoff,
            -(socket.unread + socket.unsent + socket.unacked),
            math.inf if socket.sent_age_s is None else socket.sent_age_s,
        ),
    )
    return tuple(
        replace(
            socket,
            sent_age_s=_rounded(socket.sent_age_s),
            broken_age_s=_rounded(socket.broken_age_s),
        )
        for socket in found[:SOCKETS_REPORTED]
    )


def verdict_of(
    verdict: Verdict, node: str, now_s: float, pods: Mapping[Pid, str], names: Mapping[str, str]
) -> Verdict:
    """The node's own verdict, reduced to what a report has a place for.

    `names`: uid of a pod to its name. `now_s`: the report's time, before which every fault began.
    """
    return Verdict(
        kind=verdict.kind,
        cause=verdict.cause,
        since_s=min(verdict.since_s, now_s),
        culprit=_culprit(verdict.culprit, node, pods, names),
        evidence=tuple(
            Evidence(evidence.kind, evidence.text[:_TEXT], node)
            for evidence in verdict.evidence[:32]
        ),
        unobserved=_cut(verdict.unobserved),
        deadline_s=verdict.deadline_s,
        factor=verdict.factor,
        certainty=verdict.certainty,
        graph=_cut(verdict.graph)[:16],
        acts_at_s=verdict.acts_at_s,
        acts_why=verdict.acts_why[:_TEXT],
    )


def _culprit(
    culprit: Culprit | None, node: str, pods: Mapping[Pid, str], names: Mapping[str, str]
) -> Culprit | None:
    if culprit is None:
        return None
    uid = pods.get(Pid(culprit.pid)) if culprit.pid is not None else None
    pod, at = (names.get(uid), node) if uid else (None, None)
    return replace(culprit, pod=pod, pod_uid=uid, node=at)


def _cut(texts: Iterable[str] | Sequence[str]) -> tuple[str, ...]:
    return tuple(text[:_TEXT] for text in list(texts)[:64])
