"""Ranks that wait for a pod of their gang that does not run yet, and the reason that its status gives.

Before the first step, an agent reports that all ranks of its node wait, and the API server knows which pods do not run.
Nothing is inferred from it: a pod may run at any moment, and then the verdict is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.api.job_kinds import must_train, with_ranks
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.diagnosis.clock.certainty import certainty_of
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.silence_summary import StartWait
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.tunables.diagnosis import ARRIVAL_FLOOR_S

_MOST_NAMED = 8
_CERTAIN = frozenset({Certainty.ANNOUNCED, Certainty.PROVEN})


def waits_at_start(received: ReceivedReport) -> StartWait | None:
    """The wait of all ranks of a node before the first step, as it reports it; None once they train."""
    return None if received.report.trained else received.report.start_wait


def is_unstarted(pod: Pod) -> bool:
    """True for a pod whose ranks cannot have started, because a container that runs them does not run yet."""
    is_over = pod.ended or pod.deleted_s is not None
    if is_over or pod.wait is None or not must_train(pod):
        return False
    containers = with_ranks(pod)
    return not containers or any(container.started_s is None for container in containers)


def or_unstarted(
    gang_input: GangInput, gang_verdict: GangVerdict, silent_since_s: float | None
) -> tuple[GangVerdict, float | None]:
    """The verdict, and since when no rank has moved; while ranks wait for a pod that does not run, UNKNOWN with it.

    What was announced or proven stays. Whatever else the waits of the ranks seem to show, they show it of a gang of
    which a part is absent. `silent_since_s`: unix seconds; None where that is not known.
    """
    verdict = gang_verdict.verdict
    certainty = verdict.certainty or certainty_of(
        verdict.kind, verdict.cause, verdict.culprit, verdict.evidence
    )
    found_verdict = None if certainty in _CERTAIN else _waited_for(gang_input)
    if found_verdict is None:
        return gang_verdict, silent_since_s
    return GangVerdict(found_verdict), found_verdict.since_s


def _waited_for(gang_input: GangInput) -> Verdict | None:
    pods = [pod for pod in gang_input.pods if is_unstarted(pod)]
    waits = _waits(gang_input) if pods else []
    if not waits or _all_present(waits):
        return None
    now_s = gang_input.now_s
    waited_s = min(wait.age_s for wait in waits)
    due = [pod for pod in pods if min(waited_s, now_s - pod.created_s) >= _grace_s(gang_input, pod)]
    if not due:
        return None
    # a pod with an obstacle keeps the others waiting for longer than one that is being started
    due.sort(key=lambda pod: (not _has_obstacle(pod), pod.name))
    named = due[0]
    return Verdict(
        job=gang_input.name,
        incident="",
        kind=VerdictKind.UNKNOWN,
        cause=Cause.MISSING_RANK,
        time_s=now_s,
        since_s=now_s - waited_s,
        culprit=Culprit(pod=named.name, pod_uid=named.uid, node=named.node or None),
        evidence=(
            *(_evidence(pod) for pod in due[:_MOST_NAMED]),
            Evidence(EvidenceKind.PEERS, _waits_text(waits, waited_s, len(pods))),
        ),
    )


def _waits(gang_input: GangInput) -> list[StartWait]:
    """The waits of all nodes on which a pod of the gang runs, as of now; empty while the ranks of one do not wait.

    A node that does not report is not asked: whatever its ranks do, the absent pod is absent.
    """
    running = {
        pod.node
        for pod in gang_input.pods
        if not pod.ended and must_train(pod) and not is_unstarted(pod)
    }
    found = []
    for received in gang_input.fresh:
        if received.report.node not in running:
            continue
        wait = waits_at_start(received)
        if wait is None:
            return []
        late_s = received.since_made_s(gang_input.now_s)
        found.append(StartWait(wait.age_s + late_s, wait.ranks, wait.world_size))
    return found


def _all_present(waits: Sequence[StartWait]) -> bool:
    """True if the ranks that wait are all ranks of their job: the pod has none of them."""
    size = max(wait.world_size or 0 for wait in waits)
    return 0 < size <= sum(wait.ranks for wait in waits)


def _grace_s(gang_input: GangInput, pod: Pod) -> float:
    """Seconds within which a pod may start: less if its status names an obstacle."""
    return ARRIVAL_FLOOR_S if _has_obstacle(pod) else gang_input.policy.start_grace_s


def _has_obstacle(pod: Pod) -> bool:
    return pod.wait is not None and pod.wait.is_obstacle


def _evidence(pod: Pod) -> Evidence:
    why = "" if pod.wait is None else f": {pod.wait.text}"
    return Evidence(EvidenceKind.SINK, f"pod {pod.name} does not run{why}", pod.node or None)


def _waits_text(waits: Sequence[StartWait], waited_s: float, absent_count: int) -> str:
    size = next((wait.world_size for wait in waits if wait.world_size is not None), None)
    ranks = sum(wait.ranks for wait in waits)
    of = f"{ranks} ranks" if size is None else f"{ranks} of {size} ranks"
    pods = "1 pod of the job does" if absent_count == 1 else f"{absent_count} pods of the job do"
    return f"{of} have started and waited for {waited_s:.0f} s before the first step, and {pods} not run"
