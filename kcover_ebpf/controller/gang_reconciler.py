"""One pass over one gang: what is reported about it, what is decided, and the next steps of what was begun."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from kcover_ebpf.api.fault_policy import FaultPolicy, Level, NamedPolicy
from kcover_ebpf.api.gang_id import GangId
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.cluster.gang_input import GangVerdict
from kcover_ebpf.cluster.unreported import unreported
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.breaker import Breaker, Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.context_builder import ContextBuilder, GangMemo
from kcover_ebpf.controller.deletions import Deletions
from kcover_ebpf.controller.owners import FoundOwner, Owners
from kcover_ebpf.controller.pod_cache import PodCache
from kcover_ebpf.controller.quota import Quota
from kcover_ebpf.controller.telemetry import ControllerTelemetry
from kcover_ebpf.diagnosis.verdict import VerdictKind
from kcover_ebpf.recovery import advance, guards
from kcover_ebpf.recovery.context import GangPod, RestartInput, TopOwner
from kcover_ebpf.recovery.machine import RestartContext, Transition
from kcover_ebpf.recovery.steps import step_of
from kcover_ebpf.tunables.controller import (
    CALL_AGAIN_S,
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
    """Reconciles gangs; thread-safe as long as no gang is reconciled twice at a time."""

    def __init__(
        self,
        store: ObjectCache,
        gangs: PodCache,
        owners: Owners,
        writer: ApiWriter,
        story: ControllerTelemetry,
        limits: Limits,
    ) -> None:
        self._store, self._gangs, self._contexts = store, gangs, ContextBuilder(store, owners)
        self._writer, self._story, self._limits = writer, story, limits
        self._memory: dict[GangId, GangMemo] = {}
        self._breaker = Breaker(store, limits)
        self._deletions = Deletions(store, self._contexts, writer)
        self._quota = Quota(store, writer, limits.incidents)
        self._gate = threading.Lock()
        self._deciding: set[GangId] = set()
        self.wall: Callable[[], float] = time.time

    def reconcile(self, key: GangId) -> float | None:
        """Reconcile a gang; seconds until it should be again, None if an event will say so."""
        if self._limits.only and key.namespace not in self._limits.only:
            return None
        if key in list(self._store.unreadable.values()):
            return UNREADABLE_S
        self._deletions.finish(key)
        known = self._store.of_gang(key)
        live = next(
            (
                each
                for each in known
                if not each.is_leaving and (each.status is None or not each.status.phase.is_over)
            ),
            None,
        )
        memory = self._memory.setdefault(key, GangMemo())
        if live is None and not self._contexts.is_suspected(key):
            self._record_unreported(key, known)
            if memory.calm_s and self.wall() - memory.calm_s < IDLE_WATCHED_S:
                return IDLE_WATCHED_S
            self._gangs.forget(key)
            self._memory.pop(key, None)
            return None
        memory.calm_s = self.wall()
        pods = self._gangs.pods(key)
        if pods is None:
            return 1.0
        if live is not None and self._yields(live):
            return YIELD_S / 10
        if live is None or live.status is None or not live.status.phase.is_acting:
            self._deciding.add(key)
        try:
            return self._go_on(key, live, known, pods, memory)
        finally:
            self._deciding.discard(key)

    def _record_unreported(self, key: GangId, known: list[Incident]) -> None:
        """Make an incident of a crash that no report speaks of any more; nothing is done about it."""
        pods, now_s = self._gangs.shown(key), self.wall()
        spans = [
            (
                each.created_s if each.status.since_s is None else each.status.since_s,
                max(each.created_s, each.status.last_s),
            )
            for each in known
            if each.status is not None
        ]
        if unreported(str(key), [each.pod for each in pods], spans, now_s) is None:
            return
        # whose pods these are is asked of the API server, so only where there is something to record
        found = self._contexts.found(key, None, pods)
        if found is None or found.top is None:
            return
        own = tuple(each for each in pods if each.pod.uid not in found.strays)
        verdict = unreported(str(key), [each.pod for each in own], spans, now_s)
        named = self._contexts.policy(key, own, None)
        action = self._limits.bounds.of(named.policy if named is not None else FaultPolicy()).action
        if verdict is None or action is Level.IGNORE:
            return
        made = self._make(key, known, found.top, named)
        if made is not None:
            nodes = tuple(sorted({each.pod.node for each in own if each.pod.node}))
            self._write(made, guards.recorded(GangVerdict(verdict), nodes))

    def _yields(self, live: Incident) -> bool:
        """Where many jobs break at once, all are decided before one is ended; but none waits for long."""
        status = live.status
        if not self._deciding or status is None or status.order is not None:
            return False
        began_s = status.at(Phase.SHUTTING_DOWN)
        return began_s is not None and self.wall() - began_s < YIELD_S

    def _go_on(
        self,
        key: GangId,
        live: Incident | None,
        known: list[Incident],
        pods: tuple[GangPod, ...],
        memory: GangMemo,
    ) -> float | None:
        found = self._found(key, live, pods, memory)
        if live is None and found is None:
            return 1.0 if pods else None
        if found is not None:
            pods = tuple(each for each in pods if each.pod.uid not in found.strays)
        named = self._contexts.policy(key, pods, live)
        policy = self._limits.bounds.of(named.policy if named is not None else FaultPolicy())
        if policy.action is Level.IGNORE and live is None:
            return None
        world = self._contexts.world(key, found, pods, policy)
        memory.remember(world.merged, self.wall())
        if live is None:
            live = self._opened(key, known, world, named, memory)
            if live is None:
                return (
                    0.3 if world.merged is not None and world.merged.verdict.kind.is_fault else 2.0
                )
        if found is not None and found.created_s is not None:
            self._story.created_s[live.job.uid] = found.created_s
        return self._move(key, live, known, policy, world, memory)

    def _opened(
        self,
        key: GangId,
        known: list[Incident],
        world: RestartInput,
        named: NamedPolicy | None,
        memory: GangMemo,
    ) -> Incident | None:
        """The incident of what is said now: the one that is there already, a new one, or None."""
        merged, top = world.merged, world.top
        if merged is None or top is None or not merged.verdict.opens_incident:
            return None
        if not merged.verdict.is_announced and self.wall() - memory.since_s < VERDICT_STABLE_S:
            return None
        ours = [each for each in known if each.job.uid == top.ref.uid and each.status is not None]
        last = ours[-1] if ours else None
        if (
            last is not None
            and last.status is not None
            and (
                merged.verdict.since_s <= last.status.last_s or _is_still_slow(last.status, merged)
            )
        ):
            again = last.status.phase in (Phase.OBSERVED, Phase.REFUSED)
            return last if again and self._quota.may_reopen(last) else None
        return self._make(key, known, top, named)

    def _make(
        self, key: GangId, known: list[Incident], top: TopOwner, named: NamedPolicy | None
    ) -> Incident | None:
        """A new incident without a status, in place of those that are over; None where there is no room for it."""
        name = f"{top.ref.name[:40].rstrip('-.')}-{uuid.uuid4().hex[:8]}"
        policy = named.name if named is not None else None
        made = Incident(key.namespace, name, top.ref, key.labels, policy)
        with self._quota.place(key) as has_place:
            if not has_place:
                return None
            created = self._store.read_incident(self._writer.create(made))
            if created is None:
                return None
            self._store.put(created)
        self._quota.supersede(known, name)
        return created

    def _move(
        self,
        key: GangId,
        live: Incident,
        known: list[Incident],
        policy: FaultPolicy,
        world: RestartInput,
        memory: GangMemo,
    ) -> float | None:
        for _ in range(_MOST_MOVES):
            found = self._found(key, live, world.pods, memory)
            world = replace(world, now_s=self.wall(), top=found.top if found is not None else None)
            turn = self._turn(live, known, policy, world)
            if turn is None:
                return None
            move = self._next(live, turn, known, memory)
            if move.status is not None:
                began = move.status.phase.is_acting and not turn.status.phase.is_acting
                live = self._write(live, move.status)
                if began and move.status.order is None:
                    return 0.0  # others first
                if move.status.phase.is_over:
                    self._deletions.guard(live, wanted=False)
                    return move.wake_s or 5.0
                continue
            if move.calls and turn.status.phase.is_acting:
                live = self._deletions.guard(live, wanted=True)
            if not self._perform(key, live, move, memory):
                return move.wake_s
            memory.found = None
        return 0.2

    def _found(
        self, key: GangId, live: Incident | None, pods: tuple[GangPod, ...], memory: GangMemo
    ) -> FoundOwner | None:
        """The top owner as it was a moment ago; as it is now, where the next step may hold it or let it go."""
        action = live.status.action if live is not None and live.status is not None else None
        keep_s = (
            OWNER_FRESH_S
            if action is not None and step_of(action.step) in advance.HOLDS
            else OWNER_READ_S
        )
        kept = memory.found
        if kept is None or kept[1] is None or self.wall() - kept[0] > keep_s:
            memory.found = kept = self.wall(), self._contexts.found(key, live, pods)
        return kept[1]

    def _turn(
        self, live: Incident, known: list[Incident], policy: FaultPolicy, world: RestartInput
    ) -> RestartContext | None:
        status = live.status
        if status is None:
            if world.merged is None or not world.merged.verdict.opens_incident:
                # the controller that made it died before it could say why, and the fault is over
                status = Status(Phase.OPEN).enter(Phase.OPEN, live.created_s, "seen")
            else:
                status = guards.first_status(world.merged, world.nodes)
        window_s = policy.restarts.window_seconds
        since_s = world.now_s - window_s
        others = _others(live, known)
        earlier = sum(one.time_s >= since_s for each in others for one in each.restarts)
        return RestartContext(
            status=status,
            world=world,
            policy=policy,
            name=live.name,
            mark=f"{live.namespace}/{live.name}",
            selector=live.selector,
            earlier=earlier,
            crashes=tuple(
                sorted(
                    (one for each in others for one in each.crashes if one.time_s >= since_s),
                    key=lambda one: one.time_s,
                )
            ),
        )

    def _next(
        self, live: Incident, turn: RestartContext, known: list[Incident], memory: GangMemo
    ) -> Transition:
        if turn.status.phase.is_acting:
            return advance.advance(turn)
        ended = [each.last_s for each in _others(live, known) if each.restarts]
        with self._gate:
            top: TopOwner | None = turn.world.top
            ask = guards.RestartRequest(
                turn=turn,
                armed=top is not None and top.armed,
                approved=live.approved,
                gates=self._breaker.gates(live.job.uid, live.namespace),
                stable_s=self.wall() - memory.since_s,
                last_restart_s=max(ended, default=None),
            )
            move = guards.decide(ask)
            if move.status is not None and move.status.phase is Phase.SHUTTING_DOWN:
                self._breaker.reserve(live.job.uid, live.namespace)
        if move.status is None and live.status is None:
            return Transition(turn.status)
        return move

    def _write(self, live: Incident, status: Status) -> Incident:
        before = live.status
        written = self._store.read_incident(self._writer.status(live, status))
        found = written if written is not None else replace(live, status=status)
        self._store.put(found)
        _LOG.info("%s/%s %s: %s", found.namespace, found.name, status.phase.value, status.message)
        self._story.publish(found, before, status)
        return found

    def _perform(self, key: GangId, live: Incident, move: Transition, memory: GangMemo) -> bool:
        """Make the calls of a move; True if the gang should be reconciled again at once."""
        done, since_s = False, self.wall() - CALL_AGAIN_S
        memory.called = {call: at_s for call, at_s in memory.called.items() if at_s > since_s}
        for call in move.calls:
            name = repr(call)
            if name in memory.called:
                continue
            self._writer.perform(key.namespace, call, f"{live.namespace}/{live.name}")
            # it may have taken seconds, and the pods that we know are those from before
            memory.called[name] = self.wall()
            done = True
        return done


def _is_still_slow(status: Status, merged: GangVerdict) -> bool:
    """True if the rank that is named has been slow since: shares of waiting do not show since when."""
    was, culprit = status.culprit, merged.culprit
    if merged.verdict.kind is not VerdictKind.SLOW or status.is_closed or not (was and culprit):
        return False
    return (status.verdict, was.pod_uid, was.pid) == (
        VerdictKind.SLOW,
        culprit.pod_uid,
        culprit.pid,
    )


def _others(live: Incident, known: list[Incident]) -> list[Status]:
    """What is said of other incidents of the same job."""
    ours = (each for each in known if each.name != live.name and each.job.uid == live.job.uid)
    return [each.status for each in ours if each.status is not None]
