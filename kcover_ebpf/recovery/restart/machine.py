"""Shared by all restart steps: the context of a pass, the transition it returns, escalation after a failed method.

A step is a function from a `RestartContext` to a `Transition`. A transition either changes the status, which is written
before anything else happens, or makes calls that may be repeated, or waits. So the controller that reads the status
after any crash continues where the last one stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.incident_parts import CrashRecord
from kcover_ebpf.api.job_kinds import must_train
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.verdict import Cause, Culprit
from kcover_ebpf.recovery.restart import gang_pods
from kcover_ebpf.recovery.restart.context import Call, GangPod, RestartInput, replace_method_of
from kcover_ebpf.recovery.restart.gang_pods import CAUSES_OF_NODES, moved_pods, unhealthy_pods
from kcover_ebpf.recovery.restart.methods import MovesBy, ReplaceMethod
from kcover_ebpf.recovery.restart.steps import TRANSITIONS, RestartDetail, Step, step_of
from kcover_ebpf.tunables.recovery import (
    BUNDLE_WITHIN_S,
    CLOCKS_APART_S,
    KILL_EXPIRES_S,
    MOST_MOVED,
    RESUME_EXPIRES_S,
    STOP_EXPIRES_S,
)

_EXPIRES_S = {
    Verb.STOP: STOP_EXPIRES_S,
    Verb.SAVE: STOP_EXPIRES_S,
    Verb.KILL: KILL_EXPIRES_S,
    Verb.RESUME: RESUME_EXPIRES_S,
    Verb.KILL_TERMINATING: RESUME_EXPIRES_S,
    Verb.SNAPSHOT: BUNDLE_WITHIN_S,
}
_MOST_DETAIL = 1024
MOST_NODES = 2000
"""The most nodes that an incident names: the definition allows no more."""


@dataclass(frozen=True, slots=True)
class RestartContext:
    """One pass over an incident that is being acted on."""

    status: Status
    world: RestartInput
    policy: FaultPolicy
    name: str
    """Name of the Incident, unique in its namespace."""
    mark: str
    """Our annotation on an object that this incident suspended."""
    selector: Mapping[str, str] = field(default_factory=dict)
    earlier: int = 0
    """Restarts of the same job within the window that other incidents made."""
    crashes: tuple[CrashRecord, ...] = ()
    """Crashes of the same job within the window that other incidents recorded, oldest first."""

    @property
    def action(self) -> RestartAction:
        """The present action; there is one whenever a step runs."""
        assert self.status.action is not None
        return self.status.action

    @property
    def next_attempt(self) -> int:
        """Number of the attempt that begins next: no two of an incident have the same, nor do their orders."""
        return self.status.action.attempt + 1 if self.status.action is not None else 1

    @property
    def elapsed_s(self) -> float:
        """Seconds since the present step began."""
        return self.world.now_s - self.action.started_s

    @property
    def acks(self) -> Mapping[str, AckResult]:
        """Results of the present order, by the nodes that have answered; empty without an order."""
        order = self.status.order
        return self.world.acks(order.id) if order is not None else {}

    @property
    def restarts_left(self) -> int:
        """Number of restarts that the policy's budget still allows."""
        return self.policy.restarts.max - self.earlier - len(self.status.restarts)

    @property
    def pause_s(self) -> float:
        """Seconds of pause that the policy requires before another restart."""
        return self.policy.restarts.pause_s(self.earlier + len(self.status.restarts))

    @property
    def detail(self) -> RestartDetail:
        """State of this attempt that is kept between passes."""
        return RestartDetail.read(self.action.detail)

    def keep(self, detail: RestartDetail) -> RestartAction:
        """The action with this detail; keys written by other versions are preserved."""
        return replace(self.action, detail={**self.action.detail, **detail.words()})

    def word_of(self, step: Step) -> str:
        """The text of the next step; raises AssertionError if it may not follow the present one.

        A restart that was called off has left its last step behind: the next one begins anew.
        """
        action = self.status.action if self.status.phase.is_acting else None
        now = step_of(action.step) if action is not None else None
        assert step in TRANSITIONS.get(now, {}), f"{now} is followed by {step}"
        return step.value

    def go(
        self, step: Step, text: str, phase: Phase | None = None, detail: RestartDetail | None = None
    ) -> Status:
        """The status at another step, with a line in the timeline; an order does not outlive its step."""
        now_s = self.world.now_s
        action = replace(self.keep(detail or self.detail), step=self.word_of(step), started_s=now_s)
        status = replace(self.status, action=action, order=None)
        return status.enter(phase or status.phase, now_s, text)

    def order(self, status: Status, verb: Verb, suffix: str = "") -> Status:
        """The status with an order to all agents."""
        order = Order(
            id=f"{self.order_id(verb)}{suffix}",
            verb=verb,
            selector=self.selector,
            created_before_s=self.before_s,
            expires_s=self.world.now_s + _EXPIRES_S[verb],
        )
        return replace(status, order=order)

    def order_id(self, verb: Verb) -> str:
        """Id of the first order with this verb in this attempt; later ones append "-" and a suffix."""
        return f"{self.name}-{self.action.attempt}-{verb.value.lower()}"

    def is_of(self, order: str, verb: Verb) -> bool:
        """True for the id of an order with this verb in this attempt."""
        wanted = self.order_id(verb)
        return order == wanted or order.startswith(f"{wanted}-")

    @property
    def before_s(self) -> float:
        """Pods created from this time on belong to the next start; by the API server's clock, in whole seconds."""
        kept_s = self.detail.before_s
        return before_s(self.world.pods) if kept_s is None else kept_s

    def is_old(self, pod: GangPod) -> bool:
        """True for a pod that existed when the restart began."""
        return pod.pod.created_s < self.before_s


@dataclass(frozen=True, slots=True)
class Transition:
    """Result of a step: a status to be written first, else calls to be made, else a time to run again."""

    status: Status | None = None
    calls: tuple[Call, ...] = ()
    wake_s: float | None = None
    """Seconds after which the step runs again if no event comes before; None to wait for an event."""


def before_s(pods: Iterable[GangPod]) -> float:
    """A moment after the creation of all these pods, and before that of any later one."""
    return max((pod.pod.created_s for pod in pods), default=0.0) + 1.0


# ---- restarts in place are seen by the restart counts, which must have grown for every pod


def baseline(pods: Iterable[GangPod]) -> str | None:
    """Restart counts as "COUNT pod=COUNT ..."; the first one applies to pods not named. None if the text is too long.

    A restart that a kubelet is carrying out is already counted, and need not happen once more.
    """
    counts = {pod.pod.name: pod.restart_count - (pod.started_s is None) for pod in pods}
    common = Counter(counts.values()).most_common(1)[0][0] if counts else 0
    others = [f"{name}={count}" for name, count in sorted(counts.items()) if count != common]
    text = " ".join([str(common), *others])
    return text if len(text) <= _MOST_DETAIL else None


def has_restarted(pod: GangPod, text: str) -> bool:
    """True once a pod has restarted since `baseline` was taken, and runs."""
    common, *others = text.split()
    counts = dict(entry.rsplit("=", 1) for entry in others)
    before = int(counts.get(pod.pod.name, common))
    return pod.restart_count > before and pod.started_s is not None


# ---- methods


def _fast_clock(restart_input: RestartInput, nodes: Collection[str]) -> str | None:
    """Sentence about a node whose clock is so far ahead that orders expire too early for it; None if there is none."""
    for received in restart_input.reports:
        ahead_s = received.report.time_s - received.arrived_s
        if received.report.node in nodes and ahead_s > CLOCKS_APART_S:
            return f"the clock of node {received.report.node} is {ahead_s:.0f} s ahead of the controller's"
    return None


def why_not_in_place(restart_input: RestartInput, policy: FaultPolicy) -> str | None:
    """Reason why the gang cannot be restarted in place; None if it can."""
    gang_verdict = restart_input.gang_verdict
    if RestartMethod.IN_PLACE not in policy.ways:
        return "the policy does not allow it"
    if obstacle := why_not_restarted(restart_input, restart_input.live):
        return obstacle
    culprit = gang_verdict.culprit if gang_verdict is not None else None
    if culprit is not None and culprit.device is not None:
        return "a device is at fault"
    if gang_verdict is not None and gang_verdict.verdict.cause is Cause.PEER_GONE:
        return "a node is gone"
    sick = unhealthy_pods(restart_input)
    return (
        f"pod {sick[0].pod.name} has the unhealthy device {sick[0].pod.unhealthy[0]}"
        if sick
        else None
    )


def why_not_restarted(restart_input: RestartInput, pods: Sequence[GangPod]) -> str | None:
    """Reason why these live pods of the gang cannot be restarted in place; None if they can."""
    nodes = {pod.pod.node for pod in pods if pod.pod.node}
    fast = _fast_clock(restart_input, nodes)
    missing = sorted(nodes - restart_input.agents)
    reasons = (
        (
            not all(pod.pod.restarts_in_place for pod in pods),
            "not every pod carries the rule RestartAllContainers",
        ),
        (not pods, "no pod of the job is running"),
        (
            any(pod.pod.phase == "Failed" for pod in restart_input.pods),
            "a pod of the job has already failed",
        ),
        (any(pod.is_leaving for pod in restart_input.pods), "a pod of the job is being deleted"),
        (bool(missing), f"no agent reports from node {missing[0] if missing else ''}"),
        (fast is not None, fast or ""),
        (
            restart_input.top is not None and restart_input.top.costs_in_place,
            "the controller of the job counts in-place restarts, or reacts to them itself",
        ),
        (preflight_of(restart_input) is not None, "a node of the job failed its preflight"),
        (baseline(pods) is None, "too many pods with differing restart counts"),
    )
    return next((text for applies, text in reasons if applies), None)


def why_not_hybrid(restart_input: RestartInput, policy: FaultPolicy) -> str | None:
    """Reason why a hybrid restart (only pods on the faulty device or node move) is impossible; None if possible."""
    moved, top = moved_pods(restart_input), restart_input.top
    uids = {pod.pod.uid for pod in moved}
    staying = [pod for pod in restart_input.live if pod.pod.uid not in uids]
    if RestartMethod.HYBRID not in policy.ways:
        return "the policy does not allow it"
    if not moved:
        return "no device or node is at fault"
    if not staying:
        return "all pods of the job are on what is at fault"
    if len(moved) > MOST_MOVED:
        return f"more than {MOST_MOVED} pods would move"
    if top is None or top.moves is MovesBy.NONE:
        return top.moves_not if top is not None else "the job is gone"
    if not all(must_train(pod.pod) for pod in moved):
        return "the launcher of the job is on what is at fault"
    gone = {pod.pod.node for pod in moved} - restart_input.ready - restart_input.fenced
    if gone:
        return f"node {min(gone)} does not answer: its pods may still run"
    return why_not_restarted(restart_input, staying)


def preflight_of(restart_input: RestartInput) -> Culprit | None:
    """The pod that is not started because its node failed the preflight, and that node; None if there is none."""
    gang_verdict = restart_input.gang_verdict
    return (
        gang_verdict.culprit
        if gang_verdict is not None and gang_verdict.verdict.cause is Cause.PREFLIGHT
        else None
    )


def avoided_node(context: RestartContext) -> str | None:
    """The node that new pods of the job should avoid; None if there is no reason against one."""
    elsewhere = context.detail.elsewhere if context.status.action is not None else ""
    if elsewhere:
        return elsewhere
    culprit = context.status.culprit
    of_node = context.status.cause in CAUSES_OF_NODES
    if culprit is not None and culprit.node and (of_node or culprit.device is not None):
        return culprit.node
    return next((pod.pod.node for pod in unhealthy_pods(context.world)), None)


def start(
    context: RestartContext, method: RestartMethod, reason: str, elsewhere: str = ""
) -> Status:
    """The status at the first step of a method."""
    restart_input = context.world
    step, text, detail = _first_step(restart_input, method, reason)
    detail = replace(detail, elsewhere=elsewhere)
    if elsewhere:
        text += f", avoiding node {elsewhere} for the new ones"
    if context.status.restarts or context.earlier:
        detail = replace(detail, pause_s=context.pause_s)
    now_s = restart_input.now_s
    word, kept, attempt = context.word_of(step), detail.words(), context.next_attempt
    action = RestartAction(method, word, attempt, now_s, reason[:_MOST_DETAIL], kept)
    nodes = restart_input.nodes[:MOST_NODES]
    status = replace(context.status, action=action, order=None, nodes=nodes or context.status.nodes)
    status = status.enter(Phase.SHUTTING_DOWN, now_s, text)
    if method is not RestartMethod.REPLACE:
        return replace(context, status=status).order(status, Verb.STOP)
    # once pods are marked for deletion, their processes are ending and can no longer be read
    status = replace(context, status=status).order(status, Verb.SNAPSHOT, "-replace")
    return status.begin(RestartMethod.REPLACE, now_s)


def _first_step(
    restart_input: RestartInput, method: RestartMethod, reason: str
) -> tuple[Step, str, RestartDetail]:
    """The first step of a method, its line in the timeline, and the detail that is kept for it."""
    grace_s = max((pod.grace_s for pod in restart_input.pods), default=30.0)
    top = restart_input.top
    count = len(restart_input.live) or len(restart_input.pods)
    if method is RestartMethod.REPLACE and top is not None and top.pod_count is not None:
        # including pods that never existed, or are already gone
        count = max(count, top.pod_count)
    run_s = gang_pods.newest(restart_input.live)
    detail = RestartDetail(pods=count, grace_s=grace_s, run_s=run_s)
    replacing = replace_method_of(top) if top is not None else None
    if method is not RestartMethod.REPLACE:
        counts = baseline(restart_input.live) or "0"
        detail = replace(detail, before_s=before_s(restart_input.live), restarts=counts)
        if method is RestartMethod.HYBRID:
            moved = moved_pods(restart_input)
            detail = replace(detail, moved=" ".join(pod.pod.uid for pod in moved))
            names = ", ".join(pod.pod.name for pod in moved)
            return Step.STOP, f"hybrid: stopping all ranks, {names} will move ({reason})", detail
        return Step.STOP, f"in place: stopping all ranks ({reason})", detail
    if replacing is ReplaceMethod.SUSPEND:
        return Step.SUSPEND, f"replace: suspending the job ({reason})", detail
    detail = replace(detail, before_s=before_s(restart_input.live))
    if replacing is ReplaceMethod.COMMAND and top is not None:
        detail = replace(detail, version=top.version)
    return Step.DELETE, f"replace: deleting the pods ({reason})", detail


def escalate(context: RestartContext, reason: str) -> Status:
    """The status after a method that did not help.

    A replacement follows, then a replacement that avoids the node at fault, and then the end with the reason. The
    budget of the policy applies to each.
    """
    top, policy = context.world.top, context.policy
    if top is None:
        return fail(context, f"{reason}; the job is gone")
    replaced = sum(restart.way is RestartMethod.REPLACE for restart in context.status.restarts)
    can = RestartMethod.REPLACE in policy.ways and replace_method_of(top) is not None
    waiting = preflight_of(context.world)
    culprit = waiting or context.status.culprit
    node = (culprit.node if culprit else None) or ""
    if not can:
        return fail(context, f"{reason}; the policy or the kind allows no other restart method")
    if context.restarts_left <= 0:
        return fail(context, f"{reason}; the budget of {policy.restarts.max} restarts is used up")
    if replaced == 0:
        return start(context, RestartMethod.REPLACE, reason, node if waiting is not None else "")
    if replaced == 1 and node:
        # a program that fails wherever it runs says nothing about the node that it failed on
        of_node = waiting is not None or context.status.cause in CAUSES_OF_NODES
        elsewhere = node if of_node else ""
        return start(context, RestartMethod.REPLACE, reason, elsewhere)
    return fail(context, f"{reason}; every restart method was tried")


def final_stop(context: RestartContext, reason: str) -> Status:
    """The status in which a job that its kubelets restart endlessly is suspended for good."""
    now_s = context.world.now_s
    word = context.word_of(Step.FINAL_STOP)
    action = RestartAction(RestartMethod.NONE, word, 1, now_s, reason[:_MOST_DETAIL])
    status = replace(context.status, action=action, order=None)
    text = f"stopping for good: {reason}, and it would restart endlessly"
    return status.enter(Phase.SHUTTING_DOWN, now_s, text)


def fail(context: RestartContext, reason: str) -> Status:
    """The end of the restart: nothing more is done, and the reason is reported."""
    action = context.status.action
    ended = replace(action, step=context.word_of(Step.FAILED)) if action is not None else None
    status = replace(context.status, action=ended, order=None)
    return status.enter(Phase.FAILED, context.world.now_s, reason)
