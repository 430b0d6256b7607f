"""From what is known of a gang to its report. Pure.

Ages are seconds before the report's own time. Texts are cut to what the schema takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.api.fault_report import (
    CollectivesPicture,
    FaultReport,
    LocalVerdict,
    RankSnapshot,
    ReportedCulprit,
    ReportedEvidence,
    SocketSnapshot,
    StopSignal,
)
from kcover_ebpf.diagnosis import tcp_links
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.process import NS, ProcessHistory
from kcover_ebpf.diagnosis.process_state import ProcessState
from kcover_ebpf.diagnosis.roles import Role
from kcover_ebpf.diagnosis.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.verdict import Culprit, Verdict
from kcover_ebpf.facts.host import CollectivesSeen
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.ids import Pid
from kcover_ebpf.output import formatting

_TEXT = 1024
_RANK_TEXT = 512
_FRAME_TEXT = 256
_TROUBLE_TEXT = 256
_MOST_RANKS = 512
_MOST_SOCKETS = 64
"""A rank of a large job has hundreds; those that tell something come first."""
_MOST_FRAMES = 32


def pictured(report: FaultReport, job: Job, pods: Mapping[Pid, str]) -> FaultReport:
    """The report with all that a judge of the whole gang needs of these ranks; `pods`: process to uid of its pod."""
    picture = job.picture()
    return replace(
        report,
        ranks=_ranks(picture, job, pods),
        knows_waits=picture.known.count > 0,
        lossy=picture.lossy,
        collectives=_collectives(picture.collectives, picture.now_ns),
    )


def _collectives(seen: CollectivesSeen | None, now_ns: int) -> CollectivesPicture | None:
    if seen is None:
        return None
    return CollectivesPicture(
        age_s=max(0.0, round((now_ns - seen.boottime_ns) / NS, 3)),
        span_s=round((seen.boottime_ns - seen.since_ns) / NS, 3),
        answers=seen.answer_count,
        moving=seen.moving,
        behind=seen.behind,
        missing=seen.missing,
        failed=seen.failed,
        odd=seen.odd,
        sides=seen.sides,
        equal=seen.equal,
        trouble=seen.trouble[:_TROUBLE_TEXT] or None,
    )


def _ranks(picture: JobSnapshot, job: Job, pods: Mapping[Pid, str]) -> tuple[RankSnapshot, ...]:
    """Where each rank, and each process that one may wait for, stands."""
    found = [
        _rank(picture, standing, job.members.views[pid], pods.get(pid, ""), job.members.world_size)
        for pid, standing in picture.standings.items()
        if pods.get(pid)
    ]
    # ranks before helpers, so that the limit takes helpers away
    found.sort(key=lambda each: (each.role != Role.RANK.value, each.rank or 0, each.pid))
    return tuple(found[:_MOST_RANKS])


def _rank(
    picture: JobSnapshot,
    standing: ProcessState,
    view: ProcessHistory,
    pod_uid: str,
    world_size: int | None,
) -> RankSnapshot:
    pid, look = standing.pid, standing.inspection
    is_rank = standing.role is Role.RANK
    stack = () if look is None else tuple(each[:_FRAME_TEXT] for each in look.stack[:_MOST_FRAMES])
    return RankSnapshot(
        pod_uid=pod_uid,
        pid=pid,
        role=standing.role.value,
        state=standing.state.value,
        tid=standing.tid,
        rank=standing.rank,
        world_size=world_size if is_rank else None,
        text=standing.text[:_RANK_TEXT],
        age_s=_age_s(picture, standing.since_ns),
        threshold_s=picture.thresholds_s.get(pid),
        sent_age_s=_age_s(picture, tcp_links.last_send_ns(view, picture.ends)),
        received_age_s=_age_s(picture, view.peer_bytes_ns),
        proven=standing.proven,
        effort=standing.effort.value if standing.effort is not None else None,
        timed=look is not None and look.timed,
        waits_for=standing.waits_for[:64],
        stack=stack,
        known_wait=bool(look is not None and look.stack and picture.known.knows(look.stack)),
        joined=is_rank and view.member is not None and view.member.joined,
        exit=_exit(view),
        sockets=_sockets(picture, view) if is_rank and view.exit is None else (),
        stop_signal=_stop_signal(picture, pid),
    )


def _stop_signal(picture: JobSnapshot, pid: Pid) -> StopSignal | None:
    sent = picture.stop_signals.get(pid)
    if sent is None:
        return None
    return StopSignal(sent.signal, sent.sender_pid, sent.sender_comm or None)


def _age_s(picture: JobSnapshot, at_ns: int) -> float | None:
    return max(0.0, round((picture.now_ns - at_ns) / NS, 3)) if at_ns else None


def _exit(view: ProcessHistory) -> str | None:
    if view.exit is None:
        return None
    if not view.exit.known:
        return "unknown"
    if view.exit.signal:
        return f"signal {view.exit.signal}"
    return f"code {view.exit.exit_code}"


def _sockets(picture: JobSnapshot, view: ProcessHistory) -> tuple[SocketSnapshot, ...]:
    telling = [each for each in view.sockets.values() if each.remote[1]]
    payload = {each.fd for each in tcp_links.payload_sockets(view, picture.ends)}
    telling.sort(
        key=lambda each: (
            each.fd not in payload,
            -each.backoff,
            -_waiting(each),
            -each.last_send_ns,
        )
    )
    return tuple(_socket(picture, each, each.fd in payload) for each in telling[:_MOST_SOCKETS])


def _waiting(sample: SocketSample) -> int:
    return sample.unread_bytes + sample.unsent_bytes + sample.unacked_bytes


def _socket(picture: JobSnapshot, sample: SocketSample, payload: bool) -> SocketSnapshot:
    return SocketSnapshot(
        local=formatting.address(sample.local),
        remote=formatting.address(sample.remote),
        state=sample.state,
        unread=sample.unread_bytes,
        unsent=sample.unsent_bytes,
        unacked=sample.unacked_bytes,
        window=sample.send_window_bytes,
        backoff=sample.backoff,
        sent_age_s=_age_s(picture, sample.last_send_ns),
        payload=payload,
    )


def verdict_of(
    verdict: Verdict, node: str, now_s: float, pods: Mapping[Pid, str], names: Mapping[str, str]
) -> LocalVerdict:
    """The node's own verdict; `names`: uid of a pod to its name; `now_s`: the report's time."""
    return LocalVerdict(
        verdict=verdict.kind,
        cause=verdict.cause,
        age_s=max(0.0, round(now_s - verdict.since_s, 3)),
        culprit=_culprit(verdict.culprit, node, pods, names),
        evidence=tuple(
            ReportedEvidence(each.kind, each.text[:_TEXT], node) for each in verdict.evidence[:32]
        ),
        unobserved=_cut(verdict.unobserved),
        deadline_s=None if verdict.deadline_s is None else round(verdict.deadline_s - now_s, 1),
        factor=verdict.factor,
    )


def _culprit(
    culprit: Culprit | None, node: str, pods: Mapping[Pid, str], names: Mapping[str, str]
) -> ReportedCulprit | None:
    if culprit is None:
        return None
    uid = pods.get(Pid(culprit.pid)) if culprit.pid is not None else None
    return ReportedCulprit(
        rank=culprit.rank,
        pid=culprit.pid,
        tid=culprit.tid,
        host=culprit.host,
        pod=names.get(uid) if uid else None,
        pod_uid=uid,
        node=node if uid else None,
        device=culprit.device,
    )


def _cut(texts: Iterable[str] | Sequence[str]) -> tuple[str, ...]:
    return tuple(each[:_TEXT] for each in list(texts)[:64])
