"""Collects everything that a decision about one gang needs from the cache and the API server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace

from kcover_ebpf.api.fault_policy import FaultPolicy, NamedPolicy, holding
from kcover_ebpf.api.incident import Incident, Phase, RestartMethod
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.nodes import is_out_of_service
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.owners import FoundOwner, Owners
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.certainty import is_explained, put_off
from kcover_ebpf.gang import job_rules, unstarted
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Certainty, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.recovery.closing import is_suspected
from kcover_ebpf.recovery.restart import gang_pods
from kcover_ebpf.recovery.restart.context import GangPod, RestartInput
from kcover_ebpf.recovery.restart.demand import Trigger, demanded
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.recovery import UNEXPLAINED_S
from kcover_ebpf.views.lag_groups import JobPlaces, sentences


@dataclass(slots=True)
class GangMemo:
    """Memory of one gang that may be lost: since when its verdict is the same, and which calls were just made."""

    signature: tuple[object, ...] | None = None
    """Kind, cause and culprit of the verdict, empty if nothing is wrong; None before the first one."""
    since_s: float = 0.0
    """Since when the signature is the same, as far as this controller has seen (unix seconds)."""
    explained_s: float | None = None
    """When the gang's wait last had a known reason (unix seconds); None if it never had."""
    called: dict[str, float] = field(default_factory=dict)
    calm_s: float = 0.0
    """When the gang last had a fault (unix seconds)."""
    found: tuple[float, FoundOwner | None] | None = None
    """(time, top owner) of the last lookup; cached, because nodes of a silent job report every second."""
    run_gang: GangId | None = None
    """Gang of the last run, for a job whose runs are different gangs; None until known."""

    def begin_pass(self, now_s: float) -> None:
        """Let what is remembered of a later moment count from now: the clock was set back since."""
        self.since_s, self.calm_s = min(self.since_s, now_s), min(self.calm_s, now_s)
        if self.explained_s is not None:
            self.explained_s = min(self.explained_s, now_s)
        self.called = {call: min(at_s, now_s) for call, at_s in self.called.items()}
        if self.found is not None:
            self.found = min(self.found[0], now_s), self.found[1]

    def remember(
        self, gang_verdict: GangVerdict | None, now_s: float, policy: Policy
    ) -> GangVerdict | None:
        """Note the verdict and return it, postponed as `certainty.put_off` says.

        Just after a wait that had a reason, a hang is only suspected: the wait may be over, and the report of that on
        its way. The clock keeps running while kind, cause and culprit are the same.
        """
        if gang_verdict is None:
            self._sign(None, now_s)
            return None
        verdict = gang_verdict.verdict
        if is_explained(verdict.kind, verdict.cause):
            self.explained_s = now_s
        verdict = put_off(verdict, self.explained_s, policy)
        unexplained_s = now_s - (self.explained_s or 0.0)
        if verdict.certainty is Certainty.INFERRED and unexplained_s < UNEXPLAINED_S:
            verdict = replace(verdict, kind=VerdictKind.UNKNOWN, certainty=Certainty.SUSPECTED)
        self._sign(verdict, now_s)
        return replace(gang_verdict, verdict=verdict)

    def _sign(self, verdict: Verdict | None, now_s: float) -> None:
        signature: tuple[object, ...] = ()
        if verdict is not None and verdict.kind is not VerdictKind.WORKING:
            culprit = verdict.culprit
            who = (culprit.node, culprit.pod, culprit.pid) if culprit is not None else None
            signature = (verdict.kind, verdict.cause, who)
        if signature != self.signature:
            self.signature, self.since_s = signature, now_s


class ContextBuilder:
    """Looks up what a decision needs; writes nothing to the API server."""

    def __init__(self, cache: ObjectCache, owners: Owners) -> None:
        self._store, self._owners = cache, owners

    def is_suspected(
        self, gang_id: GangId, pods_of: Callable[[GangId], tuple[GangPod, ...] | None]
    ) -> bool:
        """True if a report or an Event indicates a fault of the gang, or its ranks wait for a pod that does not run.

        `pods_of`: the pods of a gang, None while they are not known; called only if its ranks wait to begin.
        """
        if self._store.trigger(gang_id) is not None:
            return True
        now_s = self._store.wall()
        seen = [received for received in self._store.seen(gang_id) if not received.is_stale(now_s)]
        if is_suspected(seen):
            return True
        if not any(map(unstarted.waits_at_start, seen)):
            return False
        pods = pods_of(gang_id)
        return pods is None or any(unstarted.is_unstarted(pod.pod) for pod in pods)

    def found(
        self, gang_id: GangId, live_incident: Incident | None, pods: tuple[GangPod, ...]
    ) -> FoundOwner | None:
        """The top owner of the gang; if there is an incident, that of the incident."""
        return self._owners.of_pods(
            gang_id.namespace, pods, live_incident.job if live_incident is not None else None
        )

    def policy(
        self, gang_id: GangId, pods: tuple[GangPod, ...], live_incident: Incident | None
    ) -> NamedPolicy | None:
        """The policy in force for the gang; None: the defaults."""
        if pods:
            return holding(
                self._store.policies.of(gang_id.namespace), gang_id.namespace, pods[0].pod.labels
            )
        named = live_incident.policy if live_incident is not None else None
        return self._store.policies.named(gang_id.namespace, named) if named is not None else None

    def world(
        self,
        gang_id: GangId,
        found: FoundOwner | None,
        pods: tuple[GangPod, ...],
        policy: FaultPolicy,
        live_incident: Incident | None = None,
    ) -> RestartInput:
        """Everything known about the gang now."""
        now_s, seen = self._store.wall(), self._store.seen(gang_id)
        left_over = gang_pods.earlier(pods)
        run = [pod.pod for pod in pods if pod.pod.uid not in left_over]
        strays = found.strays if found is not None else frozenset()
        gang_input = GangInput(
            name=str(gang_id),
            seen=seen,
            pods=run,
            nodes=self._store.nodes,
            policy=policy.settings(),
            now_s=now_s,
            strays=strays,
            job_rules=policy.job_rules,
        )
        trigger = self._trigger(gang_id, run, left_over | strays)
        gang_verdict = with_lags(_verdict_of(gang_input, policy, trigger), seen, self._rack)
        agents = frozenset(
            received.report.node for received in seen if not received.is_stale(now_s)
        )
        nodes = {pod.pod.node for pod in pods}
        return RestartInput(
            now_s=now_s,
            top=found.top if found else None,
            pods=pods,
            reports=seen,
            gang_verdict=gang_verdict,
            demand=trigger.demand if trigger is not None else None,
            agents=agents,
            ready=frozenset(node for node in nodes if self._store.is_ready(node)),
            fenced=frozenset(filter(self._is_fenced, nodes)),
            published=self._owners.published(gang_id.namespace) if _moves(live_incident) else {},
        )

    def _trigger(
        self, gang_id: GangId, run: Collection[Pod], others: Collection[str]
    ) -> Trigger | None:
        """The trigger of this run of the gang (`Trigger.is_about`); None if there is none.

        One of anything else is dropped for good: its pod shows what it is about only while it exists.
        """
        trigger = self._store.trigger(gang_id)
        if trigger is not None and not trigger.is_about(run, others):
            self._store.triggers.pop(gang_id, None)
            return None
        return trigger

    def _is_fenced(self, node: str) -> bool:
        return is_out_of_service((self._store.raw_nodes.get(node) or {}).get("spec") or {})

    def _rack(self, node: str) -> str | None:
        metadata = (self._store.raw_nodes.get(node) or {}).get("metadata") or {}
        return metadata.get("rack")


def _verdict_of(gang_input: GangInput, policy: FaultPolicy, trigger: Trigger | None) -> GangVerdict:
    """The verdict from the reports, from the job's rules, or from an Event that requests a restart."""
    gang_verdict = merge(gang_input)
    if policy.job_rules and not gang_verdict.verdict.kind.is_fault:
        gang_verdict = job_rules.verdict_of(gang_input, policy.job_rules) or gang_verdict
    if trigger is not None and trigger.demand is not None:
        return demanded(gang_verdict, trigger.demand)
    if trigger is not None and not gang_verdict.verdict.kind.is_fault:
        return trigger.gang_verdict
    return gang_verdict


def _moves(live_incident: Incident | None) -> bool:
    """True while a restart depends on the addresses of single pods."""
    status = live_incident.status if live_incident is not None else None
    if status is None or status.action is None or status.phase is not Phase.SHUTTING_DOWN:
        return False
    return status.action.way is RestartMethod.HYBRID


def with_lags(
    gang_verdict: GangVerdict, seen: Sequence[ReceivedReport], rack: Callable[[str], str | None]
) -> GangVerdict:
    """The verdict with the common lag of a rack, a node or a rail, if NCCL reported one; else unchanged."""
    verdict = gang_verdict.verdict
    answers = [received.report.collectives for received in seen]
    lagging = [counts for counts in answers if counts is not None and counts.lags]
    if not verdict.opens_incident or not lagging:
        return gang_verdict
    newest = min(lagging, key=lambda counts: counts.age_s)
    texts = sentences(newest.lags, _job_places(seen, rack))
    said = tuple(Evidence(EvidenceKind.COLLECTIVE, text) for text in texts)
    return replace(gang_verdict, verdict=replace(verdict, evidence=(*verdict.evidence, *said)))


def _job_places(seen: Sequence[ReceivedReport], rack: Callable[[str], str | None]) -> JobPlaces:
    node_of: dict[str, str] = {}
    ranks_of: Counter[str] = Counter()
    for received in seen:
        node = received.report.node
        for rank in received.report.ranks:
            if rank.role is Role.RANK and rank.exit is None:
                ranks_of[node] += 1
                node_of |= dict.fromkeys((socket.local.address for socket in rank.sockets), node)
    racks = {node: name for node in ranks_of if (name := rack(node)) is not None}
    return JobPlaces(node_of, ranks_of, racks)
