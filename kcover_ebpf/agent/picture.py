"""From what is known of a gang to its report. Pure.

Ages are seconds before the report's own time. Texts are cut to what the schema takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kcover_ebpf import report
from kcover_ebpf.cluster.report import (
    LocalVerdict,
    RankPicture,
    ReportedCulprit,
    ReportedEvidence,
    SocketPicture,
)
from kcover_ebpf.facts import SocketSample
from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents.finding import Picture
from kcover_ebpf.incidents.job import Job
from kcover_ebpf.incidents.processes import NS, ProcessView
from kcover_ebpf.incidents.ranks import Role
from kcover_ebpf.incidents.standing import Standing
from kcover_ebpf.incidents.verdict import Culprit, Verdict

_TEXT = 1024
_RANK_TEXT = 512
_FRAME_TEXT = 256
_MOST_RANKS = 512
_MOST_SOCKETS = 64
"""A rank of a large job has hundreds; those that tell something come first."""
_MOST_FRAMES = 32


def ranks_of(job: Job, pods: Mapping[Pid, str]) -> tuple[RankPicture, ...]:
    """Where each rank, and each process that one may wait for, stands; `pods`: process to uid of its pod."""
    picture = job.picture()
    found = [
        _rank(picture, standing, job.members.views[pid], pods.get(pid, ""), job.members.world_size)
        for pid, standing in picture.standings.items()
        if pods.get(pid)
    ]
    # ranks before helpers, so that the limit takes helpers away
    found.sort(key=lambda each: (each.role != Role.RANK.value, each.rank or 0, each.pid))
    return tuple(found[:_MOST_RANKS])


def _rank(
    picture: Picture, standing: Standing, view: ProcessView, pod_uid: str, world_size: int | None
) -> RankPicture:
    pid, look = standing.pid, standing.inspection
    is_rank = standing.role is Role.RANK
    stack = () if look is None else tuple(each[:_FRAME_TEXT] for each in look.stack[:_MOST_FRAMES])
    return RankPicture(
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
        sent_age_s=_age_s(picture, view.last_send_ns),
        received_age_s=_age_s(picture, view.peer_bytes_ns),
        proven=standing.proven,
        effort=standing.effort.value if standing.effort is not None else None,
        timed=look is not None and look.timed,
        waits_for=standing.waits_for[:64],
        stack=stack,
        known_wait=bool(look is not None and look.stack and picture.known.knows(look.stack)),
        exit=_exit(view),
        sockets=_sockets(picture, view) if is_rank and view.exit is None else (),
    )


def _age_s(picture: Picture, at_ns: int) -> float | None:
    return max(0.0, round((picture.now_ns - at_ns) / NS, 3)) if at_ns else None


def _exit(view: ProcessView) -> str | None:
    if view.exit is None:
        return None
    if not view.exit.known:
        return "unknown"
    if view.exit.signal:
        return f"signal {view.exit.signal}"
    return f"code {view.exit.exit_code}"


def _sockets(picture: Picture, view: ProcessView) -> tuple[SocketPicture, ...]:
    telling = [each for each in view.sockets.values() if each.remote[1]]
    telling.sort(key=lambda each: (-each.backoff, -_waiting(each), -each.last_send_ns))
    return tuple(_socket(picture, each) for each in telling[:_MOST_SOCKETS])


def _waiting(sample: SocketSample) -> int:
    return sample.unread_bytes + sample.unsent_bytes + sample.unacked_bytes


def _socket(picture: Picture, sample: SocketSample) -> SocketPicture:
    return SocketPicture(
        local=report.address(sample.local),
        remote=report.address(sample.remote),
        state=sample.state,
        unread=sample.unread_bytes,
        unsent=sample.unsent_bytes,
        unacked=sample.unacked_bytes,
        window=sample.send_window_bytes,
        backoff=sample.backoff,
        sent_age_s=_age_s(picture, sample.last_send_ns),
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
