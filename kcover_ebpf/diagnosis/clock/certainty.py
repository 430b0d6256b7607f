"""Certainty of a finding, and when an armed job may be ended for it. Pure (docs/decisions/0016).

Kinds of evidence are independent if they have different causes, not different sensors. A phase that is new to a job
produces a long silence, a lone rank, a new stack and unread bytes at once. All of these together are one kind, novelty,
and only time confirms it. Independent of it are an announcement, a state that no process of the job can end, and a
contradiction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.log_clock import UNKNOWN, LogClock
from kcover_ebpf.model.silence_summary import Patience
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.certainty import KILLED_PATIENCE_S, PROVEN_CONFIRMED_S

_CONTRADICTED = frozenset({Cause.COLLECTIVE_MISMATCH, Cause.COLLECTIVE_FAILED})
"""Causes shown by counts or recordings of the ranks' own collective library that contradict each other."""


_HARD_LIMIT = "the policy's hard limit"
_STOPPED = "it may be resumed by what stopped it"
_SERVED = "storage may recover, and a restarted job would wait for it as well"


@dataclass(frozen=True, slots=True)
class ActsAt:
    """When a job is ended, counted from a moment that depends on the certainty, and the reason for this time."""

    after_s: float | None
    """Seconds after that moment; None for never."""
    why: str
    of_silence: bool = False
    """True if counted since the job fell silent, False if since the fault began."""

    def time_s(self, since_s: float, silent_since_s: float | None) -> float | None:
        """The moment at which the job is ended, on the clock of the two arguments; None for never."""
        if self.after_s is None:
            return None
        silent_s = since_s if silent_since_s is None else silent_since_s
        return (silent_s if self.of_silence else since_s) + self.after_s


def certainty_of(
    kind: VerdictKind, cause: Cause, culprit: Culprit | None, evidence: Iterable[Evidence]
) -> Certainty | None:
    """The certainty, given by the kind of evidence that does not depend on time; None if nothing is wrong."""
    kinds = {sentence.kind for sentence in evidence}
    if kind in (VerdictKind.WORKING, VerdictKind.SLOW):
        return None
    if kind is VerdictKind.UNKNOWN or EvidenceKind.APART in kinds:
        return Certainty.SUSPECTED
    if kind is VerdictKind.LOST_LINK or cause in (Cause.STOPPED, Cause.FROZEN):
        # states that may end: a signal that stops or a port that is down announces them, and no fault
        return Certainty.PROVEN
    if EvidenceKind.EVENT in kinds or kind is VerdictKind.CRASHED:
        return Certainty.ANNOUNCED
    contradiction = EvidenceKind.COLLECTIVE in kinds and cause in _CONTRADICTED
    if EvidenceKind.STATE in kinds or contradiction:
        return Certainty.PROVEN
    return Certainty.SUSPECTED if culprit is None else Certainty.INFERRED


def acts_at(
    certainty: Certainty,
    kind: VerdictKind,
    cause: Cause,
    policy: Policy,
    patience: Patience,
    kinds: Collection[EvidenceKind] = (),
) -> ActsAt:
    """When to act: announced and proven faults count since the fault began, others since the job fell silent.

    A crash that its launcher or framework may repair counts since the other ranks last made progress. `kinds`: of the
    evidence.
    """
    limit_s = policy.hard_limit_s
    if EvidenceKind.APART in kinds:
        return _at_limit(policy, "another job in it is healthy and would be ended as well")
    if certainty is Certainty.ANNOUNCED:
        return _acts_on_announced(kind, cause, policy, kinds)
    if certainty is Certainty.PROVEN:
        return _acts_on_proven(kind, cause, policy)
    if certainty is Certainty.INFERRED:
        if limit_s is not None and limit_s < patience.seconds:
            return ActsAt(limit_s, _HARD_LIMIT, of_silence=True)
        return ActsAt(patience.seconds, patience.why, of_silence=True)
    if cause in (Cause.STOPPED, Cause.FROZEN):
        return ActsAt(policy.stopped_s, _STOPPED)
    if cause is Cause.ENDING:
        return ActsAt(None, "ranks have ended well, and a finished job is not restarted")
    return _at_limit(policy, "a suspicion never ends a job")


def _at_limit(policy: Policy, why: str) -> ActsAt:
    """At the policy's hard limit; without a hard limit never, for the reason `why`."""
    limit_s = policy.hard_limit_s
    return ActsAt(limit_s, why if limit_s is None else _HARD_LIMIT, of_silence=True)


def _acts_on_proven(kind: VerdictKind, cause: Cause, policy: Policy) -> ActsAt:
    if kind is VerdictKind.LOST_LINK:
        return ActsAt(policy.link_patience_s, "a flapping link recovers by itself")
    if cause in (Cause.STOPPED, Cause.FROZEN):
        return ActsAt(policy.stopped_s, _STOPPED)
    if cause is Cause.STORAGE:
        return ActsAt(policy.storage_patience_s, _SERVED)
    return ActsAt(PROVEN_CONFIRMED_S, "no process of the job can end it")


def _acts_on_announced(
    kind: VerdictKind, cause: Cause, policy: Policy, kinds: Collection[EvidenceKind]
) -> ActsAt:
    # a crash is certain; the rest of the job is given time
    if kind is VerdictKind.CRASHED and EvidenceKind.STATE in kinds:
        return ActsAt(policy.core_dump_patience_s, "a core is being dumped")
    if kind is VerdictKind.CRASHED and EvidenceKind.SINK in kinds:
        # for as long as the repair makes progress
        return ActsAt(KILLED_PATIENCE_S, "its launcher or framework may repair it", of_silence=True)
    if kind is VerdictKind.CRASHED and cause is Cause.KILLED and EvidenceKind.PEERS in kinds:
        return ActsAt(policy.act_floor_s, "the launcher that ended it may restart it")
    return ActsAt(0.0, "the fault was announced")


def completed(
    verdict: Verdict,
    policy: Policy,
    patience: Patience,
    silent_since_s: float | None = None,
    log_clock: LogClock = UNKNOWN,
) -> Verdict:
    """The verdict with its certainty, and with the time and the reason for ending an armed job.

    An existing certainty stays.

    `log_clock`: progress according to the job's own log; it delays what is counted from a silence.
    """
    certainty = verdict.certainty or certainty_of(
        verdict.kind, verdict.cause, verdict.culprit, verdict.evidence
    )
    if certainty is None:
        return verdict
    kinds = {evidence.kind for evidence in verdict.evidence}
    acts = acts_at(certainty, verdict.kind, verdict.cause, policy, patience, kinds)
    why, deadline_s = acts.why, verdict.deadline_s
    if acts.of_silence:
        silent_s = verdict.since_s if silent_since_s is None else silent_since_s
        if deadline_s is not None and patience.gives_up_s is not None:
            # the time of the framework's own call begins when the others enter it
            deadline_s = max(deadline_s, silent_s + patience.gives_up_s)
        silent_since_s = log_clock.silent_since_s(silent_s, verdict.time_s)
    moment_s = acts.time_s(verdict.since_s, silent_since_s)
    if acts.of_silence and moment_s is not None:
        moment_s, late = log_clock.ends_s(moment_s)
        why = late or why
    return replace(
        verdict, certainty=certainty, acts_at_s=moment_s, acts_why=why, deadline_s=deadline_s
    )


_AWAITED = frozenset(
    {Cause.BLOCKED_LOCK, Cause.BLOCKED_READ, Cause.BLOCKED_UNKNOWN, Cause.LOADER_STUCK}
)


def is_explained(kind: VerdictKind, cause: Cause) -> bool:
    """True if the job does not train and is not known to be wrong, for example while it waits for a service or ends."""
    if kind is VerdictKind.UNKNOWN:
        return cause in _AWAITED
    return kind is VerdictKind.WORKING and cause is not Cause.TRAINING


def put_off(verdict: Verdict, explained_s: float | None, policy: Policy) -> Verdict:
    """The verdict; an inferred one waits `act_floor` after the moment at which the job's wait was last explained.

    `explained_s`: that moment in unix seconds; None if there was none.
    """
    is_inferred = verdict.certainty is Certainty.INFERRED and verdict.acts_why != _HARD_LIMIT
    if explained_s is None or verdict.acts_at_s is None or not is_inferred:
        return verdict
    return replace(verdict, acts_at_s=max(verdict.acts_at_s, explained_s + policy.act_floor_s))
