"""Who is not there: a rank that never came although its pod runs, and a node that went away with its ranks."""

from __future__ import annotations

from kcover_ebpf.cluster.case import FRESH_S, Case, Merged
from kcover_ebpf.cluster.gather import Gathered
from kcover_ebpf.cluster.report import ReportedCulprit, ReportedEvidence
from kcover_ebpf.incidents.finding import Finding
from kcover_ebpf.incidents.processes import NS
from kcover_ebpf.incidents.standing import EFFORT
from kcover_ebpf.incidents.verdict import Cause, Culprit, Evidence, EvidenceKind, Kind, Verdict

_MOST_RANKS = 1 << 16


def lost_node(case: Case) -> Merged | None:
    """A node that is not ready while others wait for the ranks on it; None if there is none."""
    waiting = [each for each in case.fresh if each.report.suspicious]
    ours = {pod.node for pod in case.pods if pod.node and not pod.ended}
    told = {each.report.node for each in case.fresh if each.age_s(case.now_s) <= FRESH_S}
    down = sorted(name for name in ours - told if name in case.nodes and not case.nodes[name].ready)
    if not waiting or not down:
        return None
    name = down[0]
    pod = next(pod for pod in case.pods if pod.node == name and not pod.ended)
    texts = (
        (EvidenceKind.EVENT, f"node {name} is not ready, and its agent is silent"),
        (EvidenceKind.PEERS, f"the ranks on {len(waiting)} other nodes wait"),
    )
    ages = [rank.age_s for each in waiting for rank in each.report.ranks if rank.age_s is not None]
    culprit = ReportedCulprit(pod=pod.name, pod_uid=pod.uid, node=name, host=name)
    verdict = Verdict(
        job=case.name,
        incident="",
        kind=Kind.HUNG,
        cause=Cause.PEER_GONE,
        time_s=case.now_s,
        since_s=case.now_s - max(ages, default=0.0),
        culprit=Culprit(pod=pod.name, node=name, host=name),
        evidence=tuple(Evidence(kind, text) for kind, text in texts),
    )
    return Merged(
        verdict, culprit, tuple(ReportedEvidence(kind, text, name) for kind, text in texts)
    )


def missing_rank(case: Case, gathered: Gathered) -> Finding | None:
    """The lowest rank that never came while all others wait for it; None unless every pod runs and every node told.

    All of it is read off the clock, so it is reported and ends no job: a pod may be fetching its data for as
    long, before it starts its rank.
    """
    picture = gathered.picture
    members = [view.member for view in picture.ranks.values() if view.member is not None]
    sizes = {member.world_size for member in members if member.world_size is not None}
    present = {member.rank for member in members if member.rank is not None}
    if len(sizes) != 1 or case.silent or any(each.report.trained for each in case.fresh):
        return None
    missing = sorted(set(range(min(next(iter(sizes)), _MOST_RANKS))) - present)
    pods = [pod for pod in case.pods if not pod.ended]
    if not missing or picture.left or not all(pod.phase == "Running" for pod in pods):
        return None
    ranks = [picture.standings[pid] for pid in picture.ranks]
    if not ranks or any(each.state in EFFORT for each in ranks):
        return None
    since_ns = max(each.since_ns for each in ranks)
    waited_s = (picture.now_ns - since_ns) / NS
    started = [each.started_s for pod in pods for each in pod.containers if each.started_s]
    up_s = case.now_s - max(started, default=case.now_s)
    if min(waited_s, up_s) < case.policy.start_grace_s:
        return None
    size = next(iter(sizes))
    time = (
        f"{len(present)} of {size} ranks are here; rank {missing[0]} is not, after {waited_s:.0f} s"
    )
    peers = f"all {len(ranks)} other ranks wait, and all {len(pods)} pods of the job run"
    return Finding(
        kind=Kind.HUNG,
        cause=Cause.MISSING_RANK,
        since_ns=since_ns,
        rank=missing[0],
        evidence=(Evidence(EvidenceKind.TIME, time), Evidence(EvidenceKind.PEERS, peers)),
        victims=tuple(picture.ranks),
    )
