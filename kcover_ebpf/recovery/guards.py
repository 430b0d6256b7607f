"""From what all nodes say about a job to what is done about it: the guards, in the order in which they ask.

Armed, allowed by policy, enough evidence, not held up by the breaker, within the budget, after the
pause; then the method. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kcover_ebpf.api.fault_policy import Approval, Bounds, Level
from kcover_ebpf.api.incident import FailureClass, Lost, Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.job_kinds import ARMING_LABEL
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.cluster.gang_input import GangVerdict
from kcover_ebpf.diagnosis import decisions
from kcover_ebpf.diagnosis.verdict import Cause, VerdictKind
from kcover_ebpf.recovery import repeated_crash
from kcover_ebpf.recovery.advance import with_bundles
from kcover_ebpf.recovery.context import replace_method_of
from kcover_ebpf.recovery.machine import (
    RestartContext,
    Transition,
    before_s,
    final_stop,
    preflight_of,
    start,
    why_not_in_place,
)
from kcover_ebpf.recovery.steps import RestartDetail, Step
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.recovery import (
    BUNDLE_WITHIN_S,
    FAULT_OVER_S,
    LOGS_AGAIN_S,
    VERDICT_STABLE_S,
)


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """What holds for the whole cluster."""

    dry_run: bool = False
    acting: int = 0
    """Jobs that are being shut down now."""
    most_acting: int = 20
    """The breaker: no more at once, whoever asks."""
    acting_here: int = 0
    """Those of the job's own namespace among them."""
    most_here: int = 20
    """No more of one namespace: a tenant whose jobs crash all the time leaves room for the others."""
    most_restarts: int = Bounds().max_restarts
    """Of one job within its window, also where a user approves more: the operator's."""
    shortest_pause_s: float = Bounds().backoff_seconds
    """Before a second restart, likewise."""


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """One question to the guards."""

    turn: RestartContext
    armed: bool
    approved: bool
    gates: ClusterLimits
    stable_s: float
    """Seconds for which the verdict has been the same."""
    last_restart_s: float | None = None
    """When other incidents restarted this job last; None if they never did within the window."""


def first_status(merged: GangVerdict, nodes: tuple[str, ...]) -> Status:
    """The status of a new incident, before anything is decided."""
    return describe(Status(phase=Phase.OPEN), merged, nodes).enter(
        Phase.OPEN, merged.verdict.time_s, headline_of(merged)
    )


def recorded(merged: GangVerdict, nodes: tuple[str, ...]) -> Status:
    """The status of an incident that was found after the fact, and of which only a record is kept."""
    why = "; no agent reported it, and the kubelet has restarted it: recorded only"
    text = headline_of(merged)[: 1000 - len(why)] + why
    status = describe(Status(phase=Phase.OBSERVED), merged, nodes)
    return status.enter(Phase.OBSERVED, merged.verdict.time_s, text)


def describe(status: Status, merged: GangVerdict, nodes: tuple[str, ...]) -> Status:
    """The status with what is said now; the time of the first sign stays."""
    verdict = merged.verdict
    since_s = verdict.since_s if status.since_s is None else min(status.since_s, verdict.since_s)
    same = (status.verdict, status.cause) == (verdict.kind, verdict.cause)
    return replace(
        status,
        failure=status.failure if same else FailureClass.UNKNOWN,
        verdict=verdict.kind,
        cause=verdict.cause,
        since_s=since_s,
        deadline_s=verdict.deadline_s,
        certainty=verdict.certainty,
        acts_at_s=verdict.acts_at_s,
        acts_why=verdict.acts_why[:1024],
        graph=tuple(line[:1024] for line in verdict.graph[:16]),
        culprit=merged.culprit,
        evidence=tuple(replace(each, text=each.text[:1024]) for each in merged.evidence[:64]),
        victims=verdict.victims[:4096],
        unobserved=tuple(each[:1024] for each in verdict.unobserved[:64]),
        nodes=nodes[:2000] or status.nodes,
        closed_s=None,
    )


def headline_of(merged: GangVerdict) -> str:
    """The fault in one line."""
    culprit, verdict = merged.culprit, merged.verdict
    who = "no culprit identified"
    if culprit is not None:
        rank = f"rank {culprit.rank}" if culprit.rank is not None else f"process {culprit.pid}"
        who = " ".join(
            part
            for part in (
                rank if culprit.rank is not None or culprit.pid else "",
                f"in pod {culprit.pod}" if culprit.pod else "",
                f"on {culprit.node}" if culprit.node else "",
            )
            if part
        )
    first = f": {merged.evidence[0].text}" if merged.evidence else ""
    return f"{verdict.kind.value} {verdict.cause.value}, {who}{first}"[:1024]


def decide(ask: RestartRequest) -> Transition:
    """What comes next for an incident that is not acted on yet (Open, Decided, Observed, Refused)."""
    merged = ask.turn.world.merged
    if merged is None or not merged.verdict.opens_incident:
        return _over(ask)
    if not merged.verdict.is_announced and ask.stable_s < VERDICT_STABLE_S:
        return Transition(wake_s=VERDICT_STABLE_S - ask.stable_s)
    described = describe(ask.turn.status, merged, ask.turn.world.nodes)
    turn = replace(ask.turn, status=repeated_crash.with_logs(described, ask.turn.world))
    if merged.verdict.kind is VerdictKind.SLOW:
        return _settle(ask, turn, Phase.OBSERVED, "slow rank: reported only, no action")
    short = _too_little(merged, turn)
    if short is not None:
        return _settle(ask, turn, Phase.OPEN, short, 1.0)
    observed = _why_observed(ask, turn)
    if observed is not None:
        turn = replace(turn, status=_with_snapshot(ask, turn))
        return _settle(ask, turn, Phase.OBSERVED, observed)
    return _restart(ask, turn, merged)


def _restart(ask: RestartRequest, turn: RestartContext, merged: GangVerdict) -> Transition:
    """The restart of a job that may be restarted, unless it would not help."""
    if repeated_crash.awaits_logs(turn.status, turn.crashes, turn.world.now_s):
        return Transition(wake_s=LOGS_AGAIN_S)
    hopeless = repeated_crash.why_hopeless(turn.status, turn.crashes)
    if hopeless is not None and not ask.approved:
        if _loops(turn):
            return Transition(final_stop(turn, hopeless))
        return _settle(ask, turn, Phase.REFUSED, hopeless)
    method, why = method_of(turn)
    if method is RestartMethod.NONE:
        return _settle(ask, turn, Phase.REFUSED, _no_method(turn, why))
    if _is_spent(ask, turn):
        most = ask.gates.most_restarts if ask.approved else turn.policy.restarts.max
        spent = f"the budget of {most} restarts is used up"
        if _loops(turn):
            return Transition(final_stop(turn, spent))
        return _settle(ask, turn, Phase.REFUSED, spent)
    waits = _why_wait(ask, turn)
    if waits is not None:
        return _settle(ask, turn, Phase.DECIDED, waits[0], waits[1])
    return Transition(_act(turn, merged, method, _pause_left_s(ask, turn) > 0))


def _is_spent(ask: RestartRequest, turn: RestartContext) -> bool:
    """True if no restart is left. Who approves may go beyond the policy, and not beyond the operator's bound."""
    if not ask.approved:
        return turn.restarts_left <= 0
    return turn.restarts_left + ask.gates.most_restarts - turn.policy.restarts.max <= 0


def _too_little(merged: GangVerdict, turn: RestartContext) -> str | None:
    """Why a restart would be premature; None once there is evidence enough."""
    verdict, limit_s = merged.verdict, turn.policy.settings().hard_limit_s
    if merged.depends and (limit_s is None or verdict.time_s - verdict.since_s < limit_s):
        return f"waiting: {verdict.unobserved[0]}"
    decision = decisions.decide(verdict, Act.SHUTDOWN)
    return None if decision.act is Act.SHUTDOWN else decision.reason


def _why_observed(ask: RestartRequest, turn: RestartContext) -> str | None:
    """Why the fault is reported only; None where one may act."""
    top, policy = turn.world.top, turn.policy
    if top is None or top.ended:
        return f"the job is {top.ended if top else 'gone'}"
    if not ask.armed:
        return f"not armed: label the job or its pods {ARMING_LABEL}=true"
    if policy.action is not Level.SHUTDOWN:
        return f"the policy allows {policy.action.value} only"
    if ask.gates.dry_run or policy.dry_run:
        method, _ = method_of(turn)
        return f"dry run: would restart it ({method.value})"
    return None


def _with_snapshot(ask: RestartRequest, turn: RestartContext) -> Status:
    """The status with an order to keep evidence, where the policy stops at that; agents carry it out once."""
    status, policy = with_bundles(turn.status, turn), turn.policy
    if not ask.armed or policy.action is not Level.SNAPSHOT or ask.gates.dry_run or policy.dry_run:
        return status
    if status.order is not None:
        return status
    order = Order(
        id=f"{turn.name}-{Verb.SNAPSHOT.value.lower()}",
        verb=Verb.SNAPSHOT,
        selector=turn.selector,
        created_before_s=before_s(turn.world.pods),
        expires_s=turn.world.now_s + BUNDLE_WITHIN_S,
    )
    return replace(status, order=order)


def _no_method(turn: RestartContext, why: str) -> str:
    top = turn.world.top
    if top is not None and top.ref.kind == "Pod":
        return "bare pods have no controller that would recreate them"
    if top is not None and replace_method_of(top) is None:
        return f"{top.ref.kind} is not a kind that can be replaced as a whole; in place: {why}"
    return f"the policy allows no applicable restart method; in place: {why}"


def _why_wait(ask: RestartRequest, turn: RestartContext) -> tuple[str, float] | None:
    """(why, seconds until it should be asked again); None if it need not wait."""
    if turn.policy.approval is Approval.MANUAL and not ask.approved:
        return f"waiting for approval: kubectl kcover approve {turn.name}", 30.0
    if ask.gates.acting >= ask.gates.most_acting:
        return f"waiting: {ask.gates.acting} jobs are being restarted at once", 1.0
    if ask.gates.acting_here >= ask.gates.most_here:
        here = ask.gates.acting_here
        return f"waiting: {here} jobs of this namespace are being restarted at once", 1.0
    left_s = _pause_left_s(ask, turn)
    if left_s > 0 and not _loops(turn):
        return f"waiting: back-off before restart {turn.earlier + 1} of this job", left_s
    return None


def _pause_left_s(ask: RestartRequest, turn: RestartContext) -> float:
    """What is left of the pause after the last restart; who approves waits for the operator's shortest only."""
    if ask.last_restart_s is None:
        return 0.0
    pause_s = min(turn.pause_s, ask.gates.shortest_pause_s) if ask.approved else turn.pause_s
    return max(0.0, ask.last_restart_s + pause_s - turn.world.now_s)


def _loops(turn: RestartContext) -> bool:
    """True for a crash in a gang that its kubelets restart for ever by themselves."""
    merged = turn.world.merged
    crashed = merged is not None and merged.verdict.kind is VerdictKind.CRASHED
    return crashed and why_not_in_place(turn.world, turn.policy) is None


def method_of(turn: RestartContext) -> tuple[RestartMethod, str]:
    """The first method that fits, and why an earlier one does not."""
    why = why_not_in_place(turn.world, turn.policy)
    if why is None:
        return RestartMethod.IN_PLACE, ""
    if RestartMethod.REPLACE in turn.policy.ways and can_replace(turn):
        return RestartMethod.REPLACE, why
    return RestartMethod.NONE, why


def _act(
    turn: RestartContext, merged: GangVerdict, method: RestartMethod, too_soon: bool
) -> Status:
    now_s = turn.world.now_s
    reason = f"{merged.verdict.kind.value} {merged.verdict.cause.value}"
    status = turn.status
    if status.phase is not Phase.DECIDED:
        status = status.enter(Phase.DECIDED, now_s, headline_of(merged))
    opened_s = status.at(Phase.OPEN) or now_s
    since_s = status.since_s if status.since_s is not None else opened_s
    lost = Lost(detect_s=max(opened_s - since_s, 0.0), decide_s=max(now_s - opened_s, 0.0))
    turn = replace(turn, status=replace(status, lost=lost))
    if _loops(turn) and merged.verdict.cause is not Cause.LEFT_EARLY:
        if not too_soon:
            return _settle_crash(turn, merged)
        if RestartMethod.REPLACE in turn.policy.ways and can_replace(turn):
            # a pause needs a job that does not run: the kubelets would restart it at once
            return start(turn, RestartMethod.REPLACE, f"{reason} again")
    waiting = preflight_of(turn.world)
    return start(turn, method, reason, (waiting.node or "") if waiting is not None else "")


def can_replace(turn: RestartContext) -> bool:
    """True if the job's owner can be restarted by replacing its pods."""
    return turn.world.top is not None and replace_method_of(turn.world.top) is not None


def _settle_crash(turn: RestartContext, merged: GangVerdict) -> Status:
    now_s = turn.world.now_s
    detail = RestartDetail(pods=len(turn.world.live), crashed_s=merged.verdict.since_s).words()
    reason = "the kubelets are restarting it"
    action = RestartAction(
        RestartMethod.IN_PLACE, turn.word_of(Step.SETTLE), 1, now_s, reason, detail
    )
    status = replace(turn.status, action=action, order=None)
    text = "in place: the kubelets are restarting what crashed; waiting for every pod"
    return status.enter(Phase.SHUTTING_DOWN, now_s, text).begin(RestartMethod.IN_PLACE, now_s)


def _settle(
    ask: RestartRequest, turn: RestartContext, phase: Phase, reason: str, wake_s: float = 5.0
) -> Transition:
    """Stay in a phase for a reason. What is written changes with the verdict or the reason, not with each second."""
    old, new = ask.turn.status, turn.status
    same = (old.verdict, old.cause, old.culprit) == (new.verdict, new.cause, new.culprit)
    same = same and (old.order, old.bundles) == (new.order, new.bundles)
    same = same and (old.failure, old.crashes) == (new.failure, new.crashes)
    if old.phase is phase and same and old.message.endswith(reason):
        return Transition(wake_s=wake_s)
    merged = turn.world.merged
    message = (
        f"{headline_of(merged)[: 1000 - len(reason)]}; {reason}" if merged is not None else reason
    )
    return Transition(new.enter(phase, turn.world.now_s, message), wake_s=wake_s)


def _over(ask: RestartRequest) -> Transition:
    status = ask.turn.status
    if status.phase.is_over:
        return Transition()
    if ask.stable_s < FAULT_OVER_S:
        return Transition(wake_s=FAULT_OVER_S - ask.stable_s)
    text, now_s = "resolved on its own before any action", ask.turn.world.now_s
    return Transition(replace(status.enter(Phase.OBSERVED, now_s, text), closed_s=now_s))
