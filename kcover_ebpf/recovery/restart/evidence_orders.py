"""Orders to save evidence of jobs that are not stopped: they are not restarted, or restart by themselves. Pure.

Other jobs need no such order. Agents save evidence when they carry out `Stop`, and a replacement gets its order at the
first step (`machine.start`).
"""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.fault_policy import Level
from kcover_ebpf.api.incident import Status
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import Certainty
from kcover_ebpf.recovery.restart.advance import with_bundles
from kcover_ebpf.recovery.restart.machine import RestartContext, before_s
from kcover_ebpf.tunables.recovery import BUNDLE_WITHIN_S

_KEEPS_EVIDENCE = (Level.SNAPSHOT, Level.SHUTDOWN)


def with_snapshot(context: RestartContext, *, armed: bool, dry_run: bool) -> RestartContext:
    """The context with an order to save evidence, which agents carry out once. `dry_run`: of the cluster."""
    status, policy = with_bundles(context.status, context), context.policy
    if (
        not armed
        or policy.action not in _KEEPS_EVIDENCE
        or dry_run
        or policy.dry_run
        or status.order is not None
    ):
        return replace(context, status=status)
    return replace(context, status=_ordered(context, status, context.name))


def of_crash(context: RestartContext, status: Status) -> Status:
    """The status with such an order about a gang that its kubelets restart: one for each of these restarts."""
    return _ordered(context, status, f"{context.name}-{len(status.restarts)}")


def is_overdue(context: RestartContext, gang_verdict: GangVerdict) -> bool:
    """True for a suspicion that has lasted longer than the longest patience of an inferred fault.

    The job is never ended for it, so nothing else would have evidence saved.
    """
    verdict = gang_verdict.verdict
    lasted_s = verdict.time_s - verdict.since_s
    is_suspected = verdict.certainty is Certainty.SUSPECTED and verdict.acts_at_s is None
    return is_suspected and lasted_s >= context.policy.settings().act_cap_s


def _ordered(context: RestartContext, status: Status, name: str) -> Status:
    order = Order(
        id=f"{name}-{Verb.SNAPSHOT.value.lower()}",
        verb=Verb.SNAPSHOT,
        selector=context.selector,
        created_before_s=before_s(context.world.pods),
        expires_s=context.world.now_s + BUNDLE_WITHIN_S,
    )
    return replace(status, order=order)
