"""Additional rules for one run of `trace` over all nodes of a job that no agent watched.

They are those that `diagnosis.oneshot` adds on one host: the user thinks that the job is stuck. A job that the judge
calls healthy may have a fault whose beginning was not observed. No job is ended for such a verdict.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kcover_ebpf.diagnosis import oneshot, oneshot_waits
from kcover_ebpf.diagnosis.evidence import odd_stack
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot
from kcover_ebpf.diagnosis.membership.rank_numbers import absent, lost_before_trace
from kcover_ebpf.gang.gang_input import GangInput
from kcover_ebpf.model.process_state import WAITING, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.trace import ONESHOT_SILENCE_S

HISTORY = "how the job behaves while healthy: it was observed for the seconds of this trace only"
_GETS_ON = (State.SLEEPING, State.STORING)


def refined(gang_input: GangInput, snapshot: JobSnapshot, finding: Finding) -> Finding:
    """The judge's finding, refined by what only the absence of a rank, or the length of its waits, shows."""
    if finding.kind is VerdictKind.WORKING:
        finding = (
            _absent(gang_input, snapshot) or oneshot.device_waits(snapshot, finding) or finding
        )
        finding = _waited_for(snapshot, finding)
    finding = oneshot.stopped_here(snapshot, finding, _size(snapshot))
    return odd_stack.explained(snapshot, finding)


def streamed(snapshot: JobSnapshot, getting_on: Collection[int]) -> JobSnapshot:
    """The snapshot as a node sends it: ranks in `getting_on`, which move bytes from or to storage, are STORING."""
    changed = {
        pid: replace(process, state=State.STORING)
        if pid in getting_on and process.state is State.COMPUTING
        else process
        for pid, process in snapshot.processes.items()
    }
    return replace(snapshot, processes=changed)


def _size(snapshot: JobSnapshot) -> int | None:
    return max((rank.world_size or 0 for rank in snapshot.ranks.values()), default=0) or None


def _absent(gang_input: GangInput, snapshot: JobSnapshot) -> Finding | None:
    """The rank that was lost before the run, or never came, if all others wait for it; None if there is none."""
    ranks, size = list(snapshot.ranks.values()), _size(snapshot)
    numbered = [process for process in snapshot.processes.values() if process.role is Role.RANK]
    present = {rank.rank for rank in numbered if rank.rank is not None}
    if gang_input.silent or not ranks or size is None or len(present) < len(numbered):
        return None
    missing = absent(present, size)
    if not missing or not all(map(_waits, ranks)):
        return None
    waited_s = min(rank.age_s for rank in ranks)
    lost = lost_before_trace(missing[0], len(present), size, "on the nodes of this job")
    waits = f"all {len(ranks)} ranks present have waited for at least {waited_s:.1f} s"
    return Finding(
        kind=VerdictKind.HUNG,
        cause=Cause.MISSING_RANK,
        since_ns=snapshot.oldest_ns,
        culprit=Culprit(missing[0]),
        evidence=(Evidence(EvidenceKind.SINK, lost), Evidence(EvidenceKind.PEERS, waits)),
        victims=tuple(snapshot.ranks),
    )


def _waits(rank: RankSnapshot) -> bool:
    return rank.state in WAITING and rank.age_s >= ONESHOT_SILENCE_S


def _waited_for(snapshot: JobSnapshot, finding: Finding) -> Finding:
    sent_s = [rank.sent_age_s for rank in snapshot.ranks.values()]
    known_s = [age_s for age_s in sent_s if age_s is not None]
    named = oneshot_waits.waited_for(
        snapshot, finding, min(known_s) if len(sent_s) > 1 and known_s else None
    )
    first = snapshot.ranks.get(named.pid) if named is not finding and named.pid else None
    return finding if first is None or first.state in _GETS_ON else named
