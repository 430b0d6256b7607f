"""From the verdict on a job to what is done about it: the guards, in the order in which they are asked.

First the evidence: stable, certain enough, no report missing, nothing left to a framework (`_too_little`). Then whether
one may act: armed, no dry run, allowed by the policy (`_why_observed`). Then whether a restart would help and a method
and a budget exist (`_restart`). Last the time: approval, breaker, back-off (`_why_wait`). The first objection decides.
"""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.fault_policy import Approval, Bounds, FrameworkFirst, Level
from kcover_ebpf.api.incident import (
    Lost,
    Phase,
    RestartAction,
    RestartMethod,
    Status,
    kept_verdict,
)
from kcover_ebpf.api.job_kinds import ARMING_LABEL
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis import decisions
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import Cause, EvidenceKind, FailureClass, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import evidence_orders, repeated_crash, repetition, saving
from kcover_ebpf.recovery.restart.context import replace_method_of
from kcover_ebpf.recovery.restart.gang_pods import CAUSES_OF_NODES
from kcover_ebpf.recovery.restart.machine import (
    MOST_NODES,
    RestartContext,
    Transition,
    final_stop,
    preflight_of,
    start,
    why_not_hybrid,
    why_not_in_place,
)
from kcover_ebpf.recovery.restart.steps import RestartDetail, Step
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.recovery import (
    FAULT_OVER_S,
    LOGS_AGAIN_S,
    VERDICT_STABLE_S,
)

_LEFT_BY_POLICY = {
    FrameworkFirst.ANNOUNCED: (),
    FrameworkFirst.CRASHES: (VerdictKind.CRASHED,),
    FrameworkFirst.FAULTS: (VerdictKind.CRASHED, VerdictKind.HUNG),
}


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """Limits that apply to the whole cluster."""

    dry_run: bool = False
    acting: int = 0
    """Jobs that are being shut down at present."""
    most_acting: int = 20
    """Circuit breaker: most restarts in progress at once, cluster-wide."""
    acting_here: int = 0
    """Jobs among these in the job's own namespace."""
    most_here: int = 20
    """Most restarts in progress at once in one namespace, so that one tenant cannot use up `most_acting`."""
    most_restarts: int = Bounds().max_restarts
    """The operator's bound on restarts of one job within its window, even if a user approves more."""
    shortest_pause_s: float = Bounds().backoff_seconds
    """The operator's least pause in seconds before a second restart, even if a user approves it."""


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """Everything that the guards need to decide about one incident."""

    context: RestartContext
    armed: bool
    approved: bool
    limits: ClusterLimits
    stable_s: float
    """Seconds for which the verdict has been the same."""
    last_restart_s: float | None = None
    """When other incidents last restarted this job (unix seconds); None if never within the window."""


def first_status(
    gang_verdict: GangVerdict, nodes: tuple[str, ...], owner: str | None = None
) -> Status:
    """The status of a new incident, before any decision."""
    return describe(Status(phase=Phase.OPEN, owner=owner), gang_verdict, nodes).enter(
        Phase.OPEN, gang_verdict.verdict.time_s, headline_of(gang_verdict)
    )


def recorded(gang_verdict: GangVerdict, nodes: tuple[str, ...]) -> Status:
    """The status of an incident that was found after the fact, which is only recorded."""
    why = "; no agent reported it, and the kubelet has restarted it: recorded only"
    text = headline_of(gang_verdict)[: 1000 - len(why)] + why
    status = describe(Status(phase=Phase.OBSERVED), gang_verdict, nodes)
    return status.enter(Phase.OBSERVED, gang_verdict.verdict.time_s, text)


def describe(status: Status, gang_verdict: GangVerdict, nodes: tuple[str, ...]) -> Status:
    """The status with the present verdict; the time of the first sign stays, unless that fault passed."""
    verdict, went_by = gang_verdict.verdict, status.closed_s is not None
    known_s = verdict.since_s if status.since_s is None or went_by else status.since_s
    same = (status.kind, status.cause) == (verdict.kind, verdict.cause)
    return replace(
        status,
        failure=status.failure if same else FailureClass.UNKNOWN,
        verdict=replace(kept_verdict(verdict), since_s=min(known_s, verdict.since_s)),
        nodes=nodes[:MOST_NODES] or status.nodes,
        silences=gang_verdict.silences_with(status.silences),
        work=None if went_by else status.work,
        closed_s=None,
    )


def headline_of(gang_verdict: GangVerdict) -> str:
    """The fault in one line, or the request if there is no fault."""
    culprit, verdict = gang_verdict.culprit, gang_verdict.verdict
    if verdict.cause is Cause.REQUESTED:
        return gang_verdict.evidence[0].text
    who = "no culprit identified"
    if culprit is not None:
        rank = f"rank {culprit.rank}" if culprit.rank is not None else f"process {culprit.pid}"
        rank += "" if culprit.or_rank is None else f" or rank {culprit.or_rank}"
        who = " ".join(
            part
            for part in (
                rank if culprit.rank is not None or culprit.pid else "",
                f"in pod {culprit.pod}" if culprit.pod else "",
                f"on {culprit.node}" if culprit.node else "",
            )
            if part
        )
    first = f": {gang_verdict.evidence[0].text}" if gang_verdict.evidence else ""
    return f"{verdict.kind.value} {verdict.cause.value}, {who}{first}"[:1024]


NOT_ARMED = f"not armed: label the job or its pods {ARMING_LABEL}=true"


def decide(request: RestartRequest) -> Transition:
    """The next transition of an incident without an action so far (Open, Decided, Observed, Refused)."""
    gang_verdict = request.context.world.gang_verdict
    if gang_verdict is None or not gang_verdict.verdict.opens_incident:
        return _over(request)
    if not gang_verdict.verdict.is_announced and request.stable_s < VERDICT_STABLE_S:
        return Transition(wake_s=VERDICT_STABLE_S - request.stable_s)
    described = describe(request.context.status, gang_verdict, request.context.world.nodes)
    context = replace(
        request.context, status=repeated_crash.with_logs(described, request.context.world)
    )
    if gang_verdict.verdict.kind is VerdictKind.SLOW:
        return _settle(request, context, Phase.OBSERVED, "slow rank: reported only, no action")
    short = _too_little(gang_verdict, context)
    if short is not None:
        if evidence_orders.is_overdue(context, gang_verdict):
            context = _with_snapshot(request, context)
        return _settle(request, context, Phase.OPEN, short, 1.0)
    observed = _why_observed(request, context)
    if observed is not None:
        return _settle(request, _with_snapshot(request, context), Phase.OBSERVED, observed)
    return _restart(request, context, gang_verdict)


def _restart(
    request: RestartRequest, context: RestartContext, gang_verdict: GangVerdict
) -> Transition:
    """The restart of a job that may be restarted, unless it would not help."""
    if repeated_crash.awaits_logs(context.status, context.crashes, context.world.now_s):
        return Transition(wake_s=LOGS_AGAIN_S)
    hopeless = repetition.why_hopeless(context, request.last_restart_s)
    if hopeless is not None and not request.approved:
        if _loops(context):
            return Transition(final_stop(context, hopeless))
        return _refused(request, context, hopeless)
    method, why = method_of(context)
    if method is RestartMethod.NONE:
        return _refused(request, context, _no_method(context, why))
    if _is_spent(request, context):
        most = request.limits.most_restarts if request.approved else context.policy.restarts.max
        spent = f"the budget of {most} restarts is used up"
        if _loops(context):
            return Transition(final_stop(context, spent))
        return _refused(request, context, spent)
    waits = _why_wait(request, context)
    if waits is not None:
        return _settle(request, context, Phase.DECIDED, waits[0], waits[1])
    return Transition(_act(context, gang_verdict, method, _pause_left_s(request, context) > 0))


def _is_spent(request: RestartRequest, context: RestartContext) -> bool:
    """True if no restart is left. A person's approval may exceed the policy's budget, but not the operator's bound."""
    if not request.approved:
        return context.restarts_left <= 0
    return context.restarts_left + request.limits.most_restarts - context.policy.restarts.max <= 0


def _too_little(gang_verdict: GangVerdict, context: RestartContext) -> str | None:
    """Reason why a restart would be premature; None if the evidence suffices, or a person requested it."""
    if context.world.demand is not None:
        return None
    verdict, limit_s = gang_verdict.verdict, context.policy.settings().hard_limit_s
    if gang_verdict.unsaid and (limit_s is None or verdict.time_s - verdict.since_s < limit_s):
        return f"waiting: {gang_verdict.unsaid}"
    framework = _left_to(gang_verdict, context)
    if framework is not None:
        return f"left for {context.policy.framework_first_seconds} s to {framework}"
    decision = decisions.decide(verdict, Act.SHUTDOWN)
    return decision.reason if decision.act is not Act.SHUTDOWN else saving.why_not_yet(context)


def _left_to(gang_verdict: GangVerdict, context: RestartContext) -> str | None:
    """The program that may repair a fault and is given time for it; None if there is none, or it is gone."""
    verdict, policy, culprit = gang_verdict.verdict, context.policy, gang_verdict.culprit
    if context.world.now_s >= verdict.since_s + policy.framework_first_seconds:
        return None
    if (top := context.world.top) is not None and top.operator is not None:
        # it replaces nodes and pods as well, so device faults and ended containers are left to it too
        return f"{top.operator}, which restarts this job by itself"
    if verdict.cause in CAUSES_OF_NODES or (culprit is not None and culprit.device is not None):
        return None
    pod_uid = culprit.pod_uid if culprit is not None else None
    own = [pod for pod in context.world.live if pod_uid in (None, pod.pod.uid)]
    # a framework that gave up ended its container
    runs = all(pod.started_s is not None and pod.started_s <= verdict.since_s for pod in own)
    return _framework(verdict, policy.framework_first) if own and runs else None


def _framework(verdict: Verdict, mode: FrameworkFirst) -> str | None:
    announces = EvidenceKind.SINK in {evidence.kind for evidence in verdict.evidence}
    if verdict.kind is VerdictKind.CRASHED and announces:
        return "its launcher or framework, which announced what it does about a failed rank"
    left = verdict.kind in _LEFT_BY_POLICY[mode]
    return "the program, which recovers by itself according to the policy" if left else None


def _why_observed(request: RestartRequest, context: RestartContext) -> str | None:
    """Reason why the fault is only reported; None if an action is allowed."""
    top, policy = context.world.top, context.policy
    if top is None or top.ended:
        return f"the job is {top.ended if top else 'gone'}"
    if not request.armed:
        return NOT_ARMED
    if policy.action is not Level.SHUTDOWN:
        return f"the policy allows {policy.action.value} only"
    if request.limits.dry_run or policy.dry_run:
        method, _ = method_of(context)
        return f"dry run: would restart it ({method.value})"
    return None


def _refused(request: RestartRequest, context: RestartContext, why: str) -> Transition:
    """No restart, but evidence: the fault stays until a person comes, and its pods may not."""
    return _settle(request, _with_snapshot(request, context), Phase.REFUSED, why)


def _with_snapshot(request: RestartRequest, context: RestartContext) -> RestartContext:
    return evidence_orders.with_snapshot(
        context, armed=request.armed, dry_run=request.limits.dry_run
    )


def _no_method(context: RestartContext, why: str) -> str:
    top, demand = context.world.top, context.world.demand
    if demand is not None and demand.method is RestartMethod.IN_PLACE:
        return f"a restart in place was requested, which is not possible: {why}"
    if top is not None and top.ref.kind == "Pod":
        return "bare pods have no controller that would recreate them"
    if top is not None and top.why:
        return f"{top.why}; in place: {why}"
    if top is not None and replace_method_of(top) is None:
        return f"{top.ref.kind} is not a kind that can be replaced as a whole; in place: {why}"
    return f"the policy allows no applicable restart method; in place: {why}"


def _why_wait(request: RestartRequest, context: RestartContext) -> tuple[str, float] | None:
    """(reason to wait, seconds until it should be checked again); None if the restart may begin."""
    if context.policy.approval is Approval.MANUAL and not request.approved:
        return f"waiting for approval: kubectl kcover approve {context.name}", 30.0
    for count, most, whose in (
        (request.limits.acting, request.limits.most_acting, ""),
        (request.limits.acting_here, request.limits.most_here, " of this namespace"),
    ):
        if count >= most:
            return f"waiting: the breaker is open, {count} jobs{whose} restarted in its window", 1.0
    left_s = _pause_left_s(request, context)
    if left_s > 0 and not _loops(context):
        return f"waiting: back-off before restart {context.earlier + 1} of this job", left_s
    return None


def _pause_left_s(request: RestartRequest, context: RestartContext) -> float:
    """Seconds left of the pause after the last restart; with approval only of the operator's least pause."""
    if request.last_restart_s is None:
        return 0.0
    pause_s = (
        min(context.pause_s, request.limits.shortest_pause_s)
        if request.approved
        else context.pause_s
    )
    return max(0.0, request.last_restart_s + pause_s - context.world.now_s)


def _loops(context: RestartContext) -> bool:
    """True for a crash in a gang that its kubelets restart endlessly."""
    gang_verdict = context.world.gang_verdict
    crashed = gang_verdict is not None and gang_verdict.verdict.kind is VerdictKind.CRASHED
    return crashed and why_not_in_place(context.world, context.policy) is None


def method_of(context: RestartContext) -> tuple[RestartMethod, str]:
    """The usable method that leaves most of the job alone, and the reason why the gang cannot restart in place."""
    why, demand = why_not_in_place(context.world, context.policy), context.world.demand
    if why is None:
        return RestartMethod.IN_PLACE, ""
    if demand is not None and demand.method is RestartMethod.IN_PLACE:
        return RestartMethod.NONE, why
    if why_not_hybrid(context.world, context.policy) is None:
        return RestartMethod.HYBRID, why
    if RestartMethod.REPLACE in context.policy.ways and can_replace(context):
        return RestartMethod.REPLACE, why
    return RestartMethod.NONE, why


def _act(
    context: RestartContext, gang_verdict: GangVerdict, method: RestartMethod, too_soon: bool
) -> Status:
    now_s = context.world.now_s
    reason = f"{gang_verdict.verdict.kind.value} {gang_verdict.verdict.cause.value}"
    status = context.status
    if status.phase is not Phase.DECIDED:
        status = status.enter(Phase.DECIDED, now_s, headline_of(gang_verdict))
    opened_s = status.at(Phase.OPEN) or now_s
    since_s = status.since_s if status.since_s is not None else opened_s
    lost = Lost(detect_s=max(opened_s - since_s, 0.0), decide_s=max(now_s - opened_s, 0.0))
    context = replace(context, status=replace(status, lost=lost))
    if _loops(context) and gang_verdict.verdict.cause is not Cause.LEFT_EARLY:
        if not too_soon:
            return _settle_crash(context, gang_verdict)
        if RestartMethod.REPLACE in context.policy.ways and can_replace(context):
            # a pause needs a job that does not run: the kubelets would restart it at once
            return start(context, RestartMethod.REPLACE, f"{reason} again")
    culprit = preflight_of(context.world)
    if method is RestartMethod.HYBRID:
        culprit = gang_verdict.culprit
    node = (culprit.node or "") if culprit is not None else ""
    return saving.first(context, method, reason, node)


def can_replace(context: RestartContext) -> bool:
    """True if the job can be restarted by replacing its pods."""
    return context.world.top is not None and replace_method_of(context.world.top) is not None


def _settle_crash(context: RestartContext, gang_verdict: GangVerdict) -> Status:
    now_s = context.world.now_s
    detail = RestartDetail(
        pods=len(context.world.live), crashed_s=gang_verdict.verdict.since_s
    ).words()
    reason = "the kubelets are restarting it"
    word, attempt = context.word_of(Step.SETTLE), context.next_attempt
    action = RestartAction(RestartMethod.IN_PLACE, word, attempt, now_s, reason, detail)
    status = replace(context.status, action=action, order=None)
    text = "in place: the kubelets are restarting what crashed; waiting for every pod"
    status = status.enter(Phase.SHUTTING_DOWN, now_s, text).begin(RestartMethod.IN_PLACE, now_s)
    return evidence_orders.of_crash(context, status)


def _settle(
    request: RestartRequest, context: RestartContext, phase: Phase, reason: str, wake_s: float = 5.0
) -> Transition:
    """Stay in a phase; the timeline gets a line if verdict or reason changed, not for a node's evidence."""
    old, new = request.context.status, context.status
    if repetition.is_said_before(old, new, phase, reason):
        has_more = (old.order, old.bundles) != (new.order, new.bundles)
        return Transition(new if has_more else None, wake_s=wake_s)
    gang_verdict = context.world.gang_verdict
    message = (
        f"{headline_of(gang_verdict)[: 1000 - len(reason)]}; {reason}"
        if gang_verdict is not None
        else reason
    )
    return Transition(new.enter(phase, context.world.now_s, message), wake_s=wake_s)


def _over(request: RestartRequest) -> Transition:
    status = request.context.status
    if status.phase.is_over:
        return Transition()
    if request.stable_s < FAULT_OVER_S:
        return Transition(wake_s=FAULT_OVER_S - request.stable_s)
    requested, now_s = status.cause is Cause.REQUESTED, request.context.world.now_s
    text = "resolved on its own before any action"
    if requested:
        text = "the request expired before the job could be restarted: ask again"
    return Transition(replace(status.enter(Phase.OBSERVED, now_s, text), closed_s=now_s))
