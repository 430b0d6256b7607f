"""Everything that a decision about one gang needs, put together from what is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from kcover_ebpf.api.fault_policy import FaultPolicy, NamedPolicy, holding
from kcover_ebpf.api.gang_id import GangId
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.cluster import job_rules
from kcover_ebpf.cluster.gang_input import GangInput, GangVerdict
from kcover_ebpf.cluster.gang_judge import merge
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.owners import FoundOwner, Owners
from kcover_ebpf.diagnosis.verdict import VerdictKind
from kcover_ebpf.recovery.closing import is_suspected
from kcover_ebpf.recovery.context import GangPod, RestartInput
from kcover_ebpf.tunables.controller import TRIGGER_S


@dataclass(slots=True)
class GangMemo:
    """What may be lost: how long the same was said, and which calls were made just now."""

    signature: tuple[object, ...] = ()
    since_s: float = 0.0
    called: dict[str, float] = field(default_factory=dict)
    calm_s: float = 0.0
    """When there was a fault last."""
    found: tuple[float, FoundOwner | None] | None = None
    """The top owner as it was a moment ago; nodes of a silent job report every second."""

    def remember(self, merged: GangVerdict | None, now_s: float) -> None:
        """Note what is said now; the clock runs on while it is the same."""
        signature: tuple[object, ...] = ()
        if merged is not None and merged.verdict.kind is not VerdictKind.WORKING:
            culprit = merged.culprit
            who = (culprit.node, culprit.pod, culprit.pid) if culprit is not None else None
            signature = (merged.verdict.kind, merged.verdict.cause, who)
        if signature != self.signature:
            self.signature, self.since_s = signature, now_s


class ContextBuilder:
    """Looks things up; writes nothing."""

    def __init__(self, store: ObjectCache, owners: Owners) -> None:
        self._store, self._owners = store, owners

    def is_suspected(self, key: GangId) -> bool:
        """True if a report or an Event speaks of a fault of the gang."""
        if key in self._store.triggers:
            return True
        now_s = self._store.wall()
        return is_suspected([each for each in self._store.seen(key) if not each.is_stale(now_s)])

    def found(
        self, key: GangId, live: Incident | None, pods: tuple[GangPod, ...]
    ) -> FoundOwner | None:
        """The top owner; that of the incident, if there is one."""
        return self._owners.of_pods(key.namespace, pods, live.job if live is not None else None)

    def policy(
        self, key: GangId, pods: tuple[GangPod, ...], live: Incident | None
    ) -> NamedPolicy | None:
        """The policy that holds; None: the defaults."""
        if pods:
            return holding(
                self._store.policies.of(key.namespace), key.namespace, pods[0].pod.labels
            )
        named = live.policy if live is not None else None
        return self._store.policies.named(key.namespace, named) if named is not None else None

    def world(
        self, key: GangId, found: FoundOwner | None, pods: tuple[GangPod, ...], policy: FaultPolicy
    ) -> RestartInput:
        """What is known now."""
        now_s, seen = self._store.wall(), self._store.seen(key)
        case = GangInput(
            name=str(key),
            seen=seen,
            pods=[each.pod for each in pods],
            nodes=self._store.nodes,
            policy=policy.settings(),
            now_s=now_s,
            strays=found.strays if found is not None else frozenset(),
        )
        merged = merge(case)
        if policy.job_rules and not merged.verdict.kind.is_fault:
            merged = job_rules.verdict_of(case, policy.job_rules) or merged
        trigger = self._store.triggers.get(key)
        if trigger is not None and not merged.verdict.kind.is_fault:
            if now_s - trigger[0] < TRIGGER_S:
                merged = trigger[1]
            else:
                self._store.triggers.pop(key, None)
        agents = frozenset(each.report.node for each in seen if not each.is_stale(now_s))
        nodes = {each.pod.node for each in pods}
        return RestartInput(
            now_s=now_s,
            top=found.top if found else None,
            pods=pods,
            reports=seen,
            merged=merged,
            agents=agents,
            ready=frozenset(each for each in nodes if self._store.is_ready(each)),
            fenced=frozenset(each for each in nodes if self._store.is_out_of_service(each)),
        )
