"""Pods that were deleted and do not go: what is known of each, and how far a restart may continue without them. Pure.

The escalation: wait for their grace period; cordon the node and continue the job elsewhere; delete them by force. In
every case, no second rank may compute while the first one still may: that it cannot has to be proven first.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident_parts import StuckPod, StuckState
from kcover_ebpf.api.order import Verb
from kcover_ebpf.gang.gang_input import is_heard
from kcover_ebpf.model.verdict import Cause
from kcover_ebpf.recovery.restart import gang_pods
from kcover_ebpf.recovery.restart.context import Cordon, Delete, GangPod
from kcover_ebpf.recovery.restart.machine import RestartContext

_MOST_STUCK = 32
_MOST_KNOWN = 512
"""Characters of one sentence: the definition allows no more, and a tenant names the finalizers of its pods."""
_FENCE = "kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


def left(context: RestartContext) -> list[GangPod]:
    """Old pods whose objects exist, without those that the job has already continued without."""
    suspendable = context.world.top is not None and context.world.top.target is not None
    earlier = gang_pods.earlier(context.world.pods, context.detail.run_s)
    pods = [pod for pod in context.world.pods if pod.pod.uid not in earlier]
    if suspendable:
        return [pod for pod in pods if pod.is_leaving or pod.is_live]
    return [pod for pod in pods if context.is_old(pod) and (pod.is_leaving or pod.is_live)]


def may_stay(context: RestartContext, pods: Sequence[GangPod]) -> bool:
    """True if the job can continue while these pods exist: they are harmless, and no new one needs their names."""
    return _frees_names(context) and all(_is_harmless(context, pod) for pod in pods)


def _frees_names(context: RestartContext) -> bool:
    top = context.world.top
    return top is not None and top.renames


def _is_harmless(context: RestartContext, pod: GangPod) -> bool:
    """True if nothing that the pod did can take effect any more.

    A process that hangs in a write to storage was killed, but its write may still be done once the storage answers
    again.
    """
    if pod.pod.ended or pod.pod.node in context.world.fenced:
        return pod.is_leaving
    return is_proven(context, pod) and context.status.cause is not Cause.STORAGE


def is_proven(context: RestartContext, pod: GangPod) -> bool:
    """True if no rank of the pod can continue computing while its replacement does.

    Its containers have ended; or the live agent there reports that none of the pod's processes computes any more (a
    process in state D with a pending SIGKILL does nothing); or the node is marked out of service. Whether its kubelet
    answers does not matter: one that is down starts nothing, and begins with the API server's state. A node that is
    only unreachable may run the rank for hours, and an order that was refused has killed nothing.
    """
    node = pod.pod.node
    if not pod.is_leaving:
        return False
    return pod.pod.ended or node in context.world.fenced or _is_killed(context, pod)


def _is_killed(context: RestartContext, pod: GangPod) -> bool:
    node, uid = pod.pod.node, pod.pod.uid
    return any(
        ack.result is AckResult.DONE
        and uid in ack.pods
        and context.is_of(ack.order, Verb.KILL_TERMINATING)
        for seen in context.world.reports
        for ack in seen.report.acks
        if seen.report.node == node and is_heard(seen, context.world.now_s)
    )


def calls(context: RestartContext, pods: Sequence[GangPod]) -> tuple[Cordon | Delete, ...]:
    """Cordon the nodes of pods that cannot be killed; delete by force only if the policy allows it and it is safe."""
    made: list[Cordon | Delete] = []
    nodes = sorted({pod.pod.node for pod in _unkillable(context, pods)})
    if nodes:
        made.append(Cordon(tuple(nodes), "a process on this node cannot be killed"))
    forced = [pod for pod in pods if not pod.pod.ended and is_proven(context, pod)]
    if context.policy.force_delete and forced:
        named = tuple((pod.pod.name, pod.pod.uid) for pod in forced)
        made.append(Delete(named, grace_s=0))
    return tuple(made)


def _unkillable(context: RestartContext, pods: Sequence[GangPod]) -> list[GangPod]:
    """Pods that still run although their kubelet, which answers, had enough time to end them."""
    return [pod for pod in pods if not pod.pod.ended and pod.pod.node in context.world.ready]


def ladder(context: RestartContext, pods: Sequence[GangPod]) -> tuple[StuckPod, ...]:
    """The state of each pod, and the next step for it."""
    return tuple(_rung(context, pod) for pod in pods[:_MOST_STUCK])


def _rung(context: RestartContext, pod: GangPod) -> StuckPod:
    state = _state(context, pod)
    name, node = pod.pod.name, pod.pod.node
    known = tuple(text[:_MOST_KNOWN] for text in _known(context, pod))
    return StuckPod(name, node, state, known, _next(context, pod, state))


def _state(context: RestartContext, pod: GangPod) -> StuckState:
    if pod.pod.ended:
        return StuckState.KEPT
    if is_proven(context, pod):
        return StuckState.PROVEN
    return StuckState.UNKILLABLE if pod.pod.node in context.world.ready else StuckState.UNKNOWN


def _known(context: RestartContext, pod: GangPod) -> tuple[str, ...]:
    world, node = context.world, pod.pod.node
    facts = []
    if pod.pod.ended:
        whose = ", ".join(sorted(pod.pod.finalizers)[:4])
        facts.append(f"its containers have ended; finalizers: {whose or 'none'}")
    if node in world.fenced:
        facts.append(f"node {node} is marked out of service: nothing runs there")
    facts.append(f"the kubelet of {node} {'answers' if node in world.ready else 'does not answer'}")
    if node not in world.agents:
        facts.append(f"no agent reports from {node}: whether its processes are gone is not known")
    elif _is_killed(context, pod):
        facts.append(
            "its agent reports that SIGKILL was sent and that no process computes any more"
        )
    else:
        facts.append("its agent has not reported that its processes are gone")
    return tuple(facts)


def _next(context: RestartContext, pod: GangPod, state: StuckState) -> str:
    match state:
        case StuckState.KEPT if may_stay(context, [pod]):
            return "the job continues without it"
        case StuckState.KEPT:
            return "its finalizer must be removed by what put it there"
        case StuckState.PROVEN if may_stay(context, [pod]):
            return "the job continues elsewhere while it stays"
        case StuckState.PROVEN if context.policy.force_delete:
            return "it is deleted by force"
        case StuckState.PROVEN if _frees_names(context):
            return "its last write may still be done: it is waited for, unless forceDelete is set in the FaultPolicy"
        case StuckState.PROVEN:
            return "set forceDelete: true in the FaultPolicy: its name is needed for the new pod"
        case StuckState.UNKILLABLE:
            return "its processes are waited for (state D?); a reboot of the node ends them"
        case StuckState.UNKNOWN:
            return f"if the machine is off: {_FENCE.format(node=pod.pod.node)}"


def why_left(context: RestartContext, pods: Sequence[GangPod]) -> str:
    """The state of all of them, in one line."""
    alive = _unkillable(context, pods)
    lost = [pod for pod in pods if not pod.pod.ended and pod not in alive]
    kept = [pod for pod in pods if pod.pod.ended]
    parts = []
    if alive:
        parts.append(
            f"these pods cannot be terminated: {_names(alive)}; their processes may be stuck in the kernel (state D)"
        )
    if lost:
        fence = _FENCE.format(node="NAME")
        parts.append(
            f"it is unknown whether these pods still run: {_names(lost)}; their nodes are not ready. If a machine is "
            f"powered off, declare it: {fence}"
        )
    if kept:
        whose = sorted({name for pod in kept for name in pod.pod.finalizers})
        why = f"kept by finalizers ({', '.join(whose[:4])})" if whose else "not removed yet"
        parts.append(f"these pods have ended and are {why}: {_names(kept)}")
    return "; ".join(parts)


def _names(pods: Sequence[GangPod]) -> str:
    return ", ".join(f"{pod.pod.name} on {pod.pod.node}" for pod in pods[:8])
