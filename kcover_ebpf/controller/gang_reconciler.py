"""One pass over one gang: what is reported about it, what is decided, and the next steps of restarts in progress."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from kcover_ebpf.api.fault_policy import FaultPolicy, Level, NamedPolicy
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.order import Verb
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.breaker import Breaker, Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.context_builder import ContextBuilder, GangMemo
from kcover_ebpf.controller.deletions import Deletions
from kcover_ebpf.controller.incident_context import context_of, others_of
from kcover_ebpf.controller.job_sizes import JobSizes
from kcover_ebpf.controller.owners import FoundOwner, Owners
from kcover_ebpf.controller.pod_cache import PodCache
from kcover_ebpf.controller.quota import Quota
from kcover_ebpf.controller.step_calls import StepCalls
from kcover_ebpf.controller.telemetry import ControllerTelemetry
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.gang.unreported import unreported
from kcover_ebpf.recovery.restart import advance, guards, same_fault
from kcover_ebpf.recovery.restart.context import GangPod, RestartInput, TopOwner
from kcover_ebpf.recovery.restart.machine import RestartContext, Transition
from kcover_ebpf.recovery.restart.steps import step_of
from kcover_ebpf.tunables.controller import (
    IDLE_WATCHED_S,
    OWNER_FRESH_S,
    OWNER_READ_S,
    UNREADABLE_S,
    YIELD_S,
)
from kcover_ebpf.tunables.recovery import VERDICT_STABLE_S

_LOG = logging.getLogger(__name__)
_MOST_MOVES = 24


class GangReconciler:
    """Reconciles gangs; thread-safe as long as no two threads reconcile the same gang."""

    def __init__(
        self,
        cache: ObjectCache,
        pods: PodCache,
        owners: Owners,
        writer: ApiWriter,
        telemetry: ControllerTelemetry,
        limits: Limits,
    ) -> None:
        self._store, self._gangs, self._contexts = cache, pods, ContextBuilder(cache, owners)
        self._writer, self._telemetry, self._limits = writer, telemetry, limits
        self._memory: dict[GangId, GangMemo] = {}
        self._breaker = Breaker(cache, limits)
        self._deletions = Deletions(cache, self._contexts, writer)
        self._calls = StepCalls(cache, writer, self._deletions)
        self._quota = Quota(cache, writer, limits.incidents)
        self._gate = threading.Lock()
        self._deciding: set[GangId] = set()
        self.wall: Callable[[], float] = time.time
        self.sizes: JobSizes | None = None
        """Records in an incident what its job occupies; None: not recorded."""

    def reconcile(self, gang_id: GangId) -> float | None:
        """Reconcile a gang; returns seconds until the next time, None if an event will trigger it."""
        if self._limits.only and gang_id.namespace not in self._limits.only:
            return None
        if gang_id in list(self._store.unreadable.values()):
            return UNREADABLE_S
        self._deletions.finish(gang_id)
        known = self._store.of_gang(gang_id)
        live_incident = next(filter(_is_live, known), None)
        memory = self._memory.setdefault(gang_id, GangMemo())
        memory.begin_pass(self.wall())
        if live_incident is None and not self._contexts.is_suspected(gang_id, self._gangs.pods):
            self._record_unreported(gang_id, known)
            if memory.calm_s and self.wall() - memory.calm_s < IDLE_WATCHED_S:
                return IDLE_WATCHED_S
            self._gangs.forget(gang_id)
            self._memory.pop(gang_id, None)
            return None
        memory.calm_s = self.wall()
        pods = self._gangs.pods(gang_id)
        if pods is None:
            return 1.0
        if live_incident is not None and self._yields(live_incident):
            return YIELD_S / 10
        if (
            live_incident is None
            or live_incident.status is None
            or not live_incident.status.phase.is_acting
        ):
            self._deciding.add(gang_id)
        try:
            return self._continue(gang_id, live_incident, known, pods, memory)
        finally:
            self._deciding.discard(gang_id)

    def _record_unreported(self, gang_id: GangId, known: list[Incident]) -> None:
        """Create an incident for a crash that no report mentions any more; no restart follows."""
        pods, now_s = self._gangs.shown(gang_id), self.wall()
        if unreported(str(gang_id), [pod.pod for pod in pods], _spans(known), now_s) is None:
            return
        # the API server is asked for the owner of the pods, so only if there is something to record
        found = self._contexts.found(gang_id, None, pods)
        if found is None or found.top is None:
            return
        own = tuple(pod for pod in pods if pod.pod.uid not in found.strays)
        spans = _spans(self._store.of_job(gang_id.namespace, found.top.ref.uid))
        verdict = unreported(str(gang_id), [pod.pod for pod in own], spans, now_s)
        named = self._contexts.policy(gang_id, own, None)
        action = self._limits.bounds.of(named.policy if named is not None else FaultPolicy()).action
        if verdict is None or action is Level.IGNORE:
            return
        incident = self._make(gang_id, known, found.top, named)
        if incident is not None:
            nodes = tuple(sorted({pod.pod.node for pod in own if pod.pod.node}))
            self._write(incident, guards.recorded(GangVerdict(verdict), nodes))

    def _yields(self, live_incident: Incident) -> bool:
        """True to postpone: if many jobs break at once, all are decided before one is ended; the delay is bounded."""
        status = live_incident.status
        if not self._deciding or status is None or _is_awaited(status):
            return False
        began_s = status.at(Phase.SHUTTING_DOWN)
        return began_s is not None and 0.0 <= self.wall() - began_s < YIELD_S

    def _continue(
        self,
        gang_id: GangId,
        live_incident: Incident | None,
        known: list[Incident],
        pods: tuple[GangPod, ...],
        memo: GangMemo,
    ) -> float | None:
        found = self._found(gang_id, live_incident, pods, memo)
        if live_incident is None and found is None:
            return 1.0 if pods else None
        if found is not None and found.top.has_gang_a_run:
            present, pods, known = self._present(gang_id, found.top, pods, memo)
            # a job has one live incident at a time, and its gangs may be reconciled at the same time
            handler = next((one.gang for one in known if _is_live(one)), present)
            if live_incident is None and handler != gang_id:
                self._store.changed(handler)
                return None
            gang_id = present
        if found is not None:
            pods = tuple(pod for pod in pods if pod.pod.uid not in found.strays)
        named = self._contexts.policy(gang_id, pods, live_incident)
        policy = self._limits.bounds.of(named.policy if named is not None else FaultPolicy())
        if policy.action is Level.IGNORE and live_incident is None:
            return None
        restart_input = self._contexts.world(gang_id, found, pods, policy, live_incident)
        judged = memo.remember(restart_input.gang_verdict, self.wall(), policy.settings())
        restart_input = replace(restart_input, gang_verdict=judged)
        if live_incident is None:
            live_incident = self._opened(gang_id, known, restart_input, named, memo)
            if live_incident is None:
                return (
                    0.3
                    if restart_input.gang_verdict is not None
                    and restart_input.gang_verdict.verdict.opens_incident
                    else 2.0
                )
        return self._move(gang_id, live_incident, known, policy, restart_input, memo)

    def _present(
        self, gang_id: GangId, top: TopOwner, pods: tuple[GangPod, ...], memo: GangMemo
    ) -> tuple[GangId, tuple[GangPod, ...], list[Incident]]:
        """Gang of the present run of a job whose runs have different labels, its pods, and incidents of all runs.

        While the job is suspended, the present run is the last one, whose pods are still to go.
        """
        if top.gang is not None:
            memo.run_gang = GangId.of(gang_id.namespace, top.gang)
        present = memo.run_gang or gang_id
        known = self._store.of_job(gang_id.namespace, top.ref.uid)
        return present, pods if present == gang_id else self._gangs.pods(present) or (), known

    def _opened(
        self,
        gang_id: GangId,
        known: list[Incident],
        restart_input: RestartInput,
        named: NamedPolicy | None,
        memo: GangMemo,
    ) -> Incident | None:
        """The incident of the present verdict: an existing one, a new one, or None."""
        gang_verdict, top = restart_input.gang_verdict, restart_input.top
        if gang_verdict is None or top is None or not gang_verdict.verdict.opens_incident:
            return None
        if not gang_verdict.verdict.is_announced and self.wall() - memo.since_s < VERDICT_STABLE_S:
            return None
        ours = [
            incident
            for incident in known
            if incident.job.uid == top.ref.uid and incident.status is not None
        ]
        last = ours[-1] if ours else None
        if (
            last is not None
            and last.status is not None
            and same_fault.is_same(last.status, gang_verdict, restart_input)
        ):
            again = last.status.phase in (Phase.OBSERVED, Phase.REFUSED)
            return last if again and self._quota.may_reopen(last) else None
        return self._make(gang_id, known, top, named)

    def _make(
        self, gang_id: GangId, known: list[Incident], top: TopOwner, named: NamedPolicy | None
    ) -> Incident | None:
        """A new incident without a status, which replaces finished ones; None if there is no room for it."""
        name = f"{top.ref.name[:40].rstrip('-.')}-{uuid.uuid4().hex[:8]}"
        policy = named.name if named is not None else None
        incident = Incident(gang_id.namespace, name, top.ref, gang_id.labels, policy)
        with self._quota.place(gang_id) as has_place:
            if not has_place:
                return None
            created = self._store.read_incident(self._writer.create(incident))
            if created is None:
                return None
            self._store.put(created)
        self._quota.supersede(known, name)
        return created

    def _move(
        self,
        gang_id: GangId,
        live_incident: Incident,
        known: list[Incident],
        policy: FaultPolicy,
        restart_input: RestartInput,
        memo: GangMemo,
    ) -> float | None:
        for _ in range(_MOST_MOVES):
            found = self._found(gang_id, live_incident, restart_input.pods, memo)
            restart_input = replace(
                restart_input, now_s=self.wall(), top=found.top if found is not None else None
            )
            context = context_of(live_incident, known, policy, restart_input)
            transition = self._next(live_incident, context, known, memo)
            if transition.status is None:
                live_incident, after_calls = self._calls.make(
                    live_incident, context, transition, memo
                )
                if after_calls is None:
                    continue
                transition = after_calls
            if transition.status is None:
                return transition.wake_s
            status = self._sized(transition.status, restart_input, found)
            began = status.phase.is_acting and not context.status.phase.is_acting
            live_incident = self._write(live_incident, status)
            if began and not _is_awaited(status):
                return 0.0  # other gangs first
            if status.phase.is_over:
                self._deletions.guard(live_incident, wanted=False)
                return transition.wake_s or 5.0
        return 0.2

    def _found(
        self,
        gang_id: GangId,
        live_incident: Incident | None,
        pods: tuple[GangPod, ...],
        memo: GangMemo,
    ) -> FoundOwner | None:
        """The top owner, cached for a while; read again if the next step may suspend or resume it."""
        action = (
            live_incident.status.action
            if live_incident is not None and live_incident.status is not None
            else None
        )
        keep_s = (
            OWNER_FRESH_S
            if action is not None and step_of(action.step) in advance.HOLDS
            else OWNER_READ_S
        )
        kept = memo.found
        if kept is None or kept[1] is None or self.wall() - kept[0] > keep_s:
            memo.found = kept = self.wall(), self._contexts.found(gang_id, live_incident, pods)
        return kept[1]

    def _next(
        self,
        live_incident: Incident,
        context: RestartContext,
        known: list[Incident],
        memo: GangMemo,
    ) -> Transition:
        if context.status.phase.is_acting:
            return advance.advance(context)
        ended = [status.last_s for status in others_of(live_incident, known) if status.restarts]
        with self._gate:
            top: TopOwner | None = context.world.top
            request = guards.RestartRequest(
                context=context,
                armed=top is not None and top.armed,
                approved=live_incident.approved,
                limits=self._breaker.gates(live_incident.job.uid, live_incident.namespace),
                stable_s=self.wall() - memo.since_s,
                last_restart_s=max(ended, default=None),
            )
            transition = guards.decide(request)
            if transition.status is not None and transition.status.phase is Phase.SHUTTING_DOWN:
                self._breaker.reserve(live_incident.job.uid, live_incident.namespace)
        if transition.status is None and live_incident.status is None:
            return Transition(context.status)
        return transition

    def _sized(
        self, status: Status, restart_input: RestartInput, found: FoundOwner | None
    ) -> Status:
        if status.size is not None or self.sizes is None:
            return status
        created_s = found.created_s if found is not None else None
        return replace(status, size=self.sizes.of(restart_input.pods, created_s))

    def _write(self, live_incident: Incident, status: Status) -> Incident:
        before = live_incident.status
        written = self._store.read_incident(self._writer.status(live_incident, status))
        incident = written if written is not None else replace(live_incident, status=status)
        self._store.put(incident)
        _LOG.info(
            "%s/%s %s: %s", incident.namespace, incident.name, status.phase.value, status.message
        )
        self._telemetry.publish(incident, before, status)
        return incident


def _is_live(incident: Incident) -> bool:
    """True while something may follow from an incident."""
    if incident.is_leaving:
        return False
    return incident.status is None or not incident.status.phase.is_over


def _spans(incidents: list[Incident]) -> list[tuple[float, float]]:
    """First and last moment of each incident that has a status; unix seconds."""
    return [
        (
            incident.created_s if status.since_s is None else status.since_s,
            max(incident.created_s, status.last_s),
        )
        for incident in incidents
        if (status := incident.status) is not None
    ]


def _is_awaited(status: Status) -> bool:
    """True while stopped ranks wait for the next step; saving evidence runs in parallel."""
    return status.order is not None and status.order.verb is not Verb.SNAPSHOT
