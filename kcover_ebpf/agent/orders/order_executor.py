"""Carries out the orders of Incidents, as docs/decisions/0005 says, and refuses everything else.

All of it runs in one thread (`run`), so that an order waits only for the one before. It opens no path that a tenant
chooses, and every wait has a limit. No error ends this thread and no full disk prevents a resume or a kill: a rank
left stopped is a hang we caused. If this process dies, a second process resumes what it stopped (`resumer`).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from kcover_ebpf.agent.containers import Containers, RunningContainer, start_ticks
from kcover_ebpf.agent.orders import save_signal, stop_and_kill
from kcover_ebpf.agent.orders.evidence_thread import EvidenceRequest, EvidenceThread
from kcover_ebpf.agent.orders.open_kill import OpenKill
from kcover_ebpf.agent.orders.order_journal import (
    ContainerRef,
    OrderJournal,
    StopRecord,
    interrupted,
)
from kcover_ebpf.agent.orders.order_listeners import Listeners, StopHolder
from kcover_ebpf.agent.orders.order_scope import addressed, checkpointed, is_meant, is_one_in
from kcover_ebpf.agent.orders.stop_and_kill import StopOutcome
from kcover_ebpf.agent.pod_registry import PodRegistry, key_of
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.order import Order, OrderedIncident, Verb
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ActionError
from kcover_ebpf.tunables.agent import LONGEST_STOP_S, ORDERS_TURN_S, STOP_WAIT_S

_ACKS_REPORTED = 8
"""The most acks that the schema allows (crds/faultreports.yaml, spec.acks)."""


class OrderExecutor:
    """Carries out orders. `hear`, `pods_changed` and `is_stopped_by_us` may be called from any thread."""

    def __init__(  # noqa: PLR0913, PLR0917 - one part of carrying out each
        self,
        registry: PodRegistry,
        containers: Containers,
        journal: OrderJournal,
        listeners: Listeners,
        holder: StopHolder,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: unix seconds; must agree with the controller's to a few seconds. `steady`: never set."""
        self._registry, self._containers, self._journal = registry, containers, journal
        self._listeners, self._clock, self._steady = listeners, clock, steady
        self._holder = holder
        self._evidence = EvidenceThread(listeners.passed_over, steady)
        self._until_s = dict.fromkeys(journal.stops, steady() + LONGEST_STOP_S)
        """Incident uid -> monotonic time at which its stopped processes are resumed."""
        self._inbox: queue.SimpleQueue[OrderedIncident | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._open_kills: list[OpenKill] = []
        self._acks: dict[str, tuple[Ack, ...]] = {}
        self._stopped: frozenset[str] = frozenset(stop.gang for stop in journal.stops.values())
        self._stops_lock = threading.Lock()
        """Locked while processes are being stopped."""
        self.turn_s = time.monotonic()
        """Monotonic time at which `run` last began a turn; it does so once a second."""

    def hear(self, incident: OrderedIncident) -> None:
        """Take an Incident that was created or changed."""
        self._inbox.put(incident)

    def pods_changed(self) -> None:
        """Take note that a pod was created, changed or deleted."""
        if self._open_kills:
            self._inbox.put(None)

    def acks(self, gang: Gang) -> tuple[Ack, ...]:
        """Acks of orders for a gang's report, newest last."""
        key = key_of(gang)
        # the journal keeps more acks than a report's schema allows; one too many, and the API server refuses all of it
        return (self._acks.get(key) or self._journal.acks(key))[-_ACKS_REPORTED:]

    def is_stopped_by_us(self, gang: Gang) -> bool:
        """True while our order keeps this gang stopped; its state then shows nothing about its health."""
        return key_of(gang) in self._stopped

    def close(self) -> None:
        """Make `run` return soon, and resume everything that is stopped: there may be no next agent."""
        self._stopping.set()
        self._inbox.put(None)
        # a stop in progress notices the end; if its thread is stuck, the other processes must still be resumed
        got = self._stops_lock.acquire(timeout=STOP_WAIT_S + 0.5)
        try:
            self._release_all()
        finally:
            if got:
                self._stops_lock.release()

    def run(self) -> None:
        """Carry out orders until `close` is called."""
        for record in self._journal.unfinished:
            with contextlib.suppress(ActionError):
                self._journal.finish(interrupted(record))
        while not self._stopping.is_set():
            self.turn_s = time.monotonic()
            self.expire()
            self._holder.tend()
            try:
                incident = self._inbox.get(timeout=self._patience_s())
            except queue.Empty:
                continue
            if incident is not None:
                self._try(
                    f"cannot execute the order of incident {incident.name}",
                    partial(self.obey, incident),
                )
            self.repeat()
        self._release_all()

    def _try(self, what: str, step: Callable[[], object]) -> bool:
        """Run one step; report its error and continue with the next."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next order must be obeyed
            self._listeners.passed_over(f"{what}: {error!r}")
            return False
        return True

    def _release_all(self) -> None:
        # resume all of them before the first write: the disk may not answer
        done = [
            incident
            for incident, record in self._journal.stops.items()
            if self._try(f"cannot resume {record.gang}", partial(self._continue, record))
        ]
        self._drop(*done)

    def _patience_s(self) -> float:
        left = (self._left_s(key, stop) for key, stop in self._journal.stops.items())
        # an overdue stop could not be resumed; it is tried again in a second
        return min([ORDERS_TURN_S, *(left_s for left_s in left if left_s > 0)])

    def _left_s(self, incident: str, record: StopRecord) -> float:
        """Seconds until stopped processes are resumed."""
        by_wall_s = record.until_s - self._clock()
        return min(by_wall_s, self._until_s.get(incident, 0.0) - self._steady())

    def obey(self, incident: OrderedIncident) -> None:
        """Carry out the order of an Incident, if it addresses this node and is not done yet."""
        order = incident.order
        if order is None or self._is_done(order):
            return
        if not is_one_in(order, incident.phase):
            return
        local_gang = addressed(self._registry.gangs(), incident.namespace, order)
        if local_gang is None:
            return
        pods = [pod for pod in local_gang.pods if is_meant(pod, order)]
        if not pods:
            return
        if order.expires_s <= self._clock():
            self._listeners.passed_over(
                f"order {order.id} ({order.verb.value}) arrived after it had expired"
            )
            return
        try:
            self._carry_out(incident, order, local_gang.gang, pods)
        except (ActionError, OSError) as error:
            self._refuse(incident, order, local_gang.gang, str(error))

    def _refuse(self, incident: OrderedIncident, order: Order, gang: Gang, why: str) -> None:
        if order.verb is Verb.STOP:
            # a gang that is stopped by half is of no use
            self._try(f"cannot resume {gang.name}", lambda: self._release(incident.uid))
        if not self._journal.knows(order.id):
            self._remember(order, gang)
        self._ack(gang, Ack(order.id, order.verb, AckResult.REFUSED, 0, why))

    def _remember(self, order: Order, gang: Gang) -> None:
        """Remember an order that is harmless if repeated: it need not reach the disk."""
        with contextlib.suppress(ActionError):
            self._journal.note(order, key_of(gang))

    def _is_done(self, order: Order) -> bool:
        # killing deleted pods is the one order that stays in force, also after our restart
        if order.verb is Verb.KILL_TERMINATING:
            return any(open_kill.order.id == order.id for open_kill in self._open_kills)
        return self._journal.knows(order.id)

    def _carry_out(
        self, incident: OrderedIncident, order: Order, gang: Gang, pods: Sequence[Pod]
    ) -> None:
        match order.verb:
            case Verb.STOP:
                self._stop(incident, order, gang, pods)
            case Verb.KILL:
                self._kill(incident, order, gang)
            case Verb.RESUME:
                outcome = self._release(incident.uid)
                self._remember(order, gang)
                self._finish(gang, order, outcome)
            case Verb.SNAPSHOT:
                self._snapshot(incident, order, gang)
            case Verb.SAVE:
                self._journal.begin(order, key_of(gang))
                ranks = self._listeners.ranks(gang)
                ack = save_signal.carry_out(order, pods, self._containers.at_work, ranks)
                self._ack(gang, ack)
            case Verb.KILL_TERMINATING:
                self._open_kills.append(OpenKill(order, gang, self._ended_before(order)))
                self.repeat()
                if not self._journal.knows(order.id):
                    self._remember(order, gang)

    def _stop(
        self, incident: OrderedIncident, order: Order, gang: Gang, pods: Sequence[Pod]
    ) -> None:
        found = [container for pod in pods for container in self._containers.at_work(pod)]
        before = self._journal.stops.get(incident.uid)
        # if a stop is repeated, its ranks were stopped by us
        already = (
            set(before.already_stopped)
            if before is not None
            else stop_and_kill.already_stopped(found)
        )
        here = [ContainerRef(container.pod_uid, container.id) for container in found]
        # a pod that was removed from the API server may still have processes that we stopped
        earlier = () if before is None else before.containers
        record = StopRecord(
            incident=incident.uid,
            gang=key_of(gang),
            until_s=order.expires_s,
            containers=tuple(dict.fromkeys((*earlier, *here))),
            already_stopped=tuple(sorted(already, key=lambda process_ref: process_ref.pid)),
        )
        if before is None:
            self._listeners.before_stop(self._request(incident, order, gang))
        with self._stops_lock:
            self._until_s[incident.uid] = self._steady() + LONGEST_STOP_S
            self._journal.begin(order, key_of(gang), record)
            if self._stopping.is_set():
                raise ActionError("the agent is shutting down")
            self._note_stopped()
            hold = partial(self._holder.hold, incident.uid)
            outcome = stop_and_kill.stop(found, hold, {process_ref.pid for process_ref in already})
        if before is not None:
            self._finish(gang, order, outcome)
            return
        self._save(incident, order, gang, outcome)

    def _snapshot(self, incident: OrderedIncident, order: Order, gang: Gang) -> None:
        self._journal.begin(order, key_of(gang))
        self._save(incident, order, gang, StopOutcome(0))

    def _save(
        self, incident: OrderedIncident, order: Order, gang: Gang, outcome: StopOutcome
    ) -> None:
        bundle = self._listeners.evidence(self._request(incident, order, gang))
        # a stop is reported before there is evidence: all other nodes wait for it
        self._finish(gang, order, outcome, bundle.path)
        self._evidence.write(incident.uid, bundle)

    def _request(self, incident: OrderedIncident, order: Order, gang: Gang) -> EvidenceRequest:
        local_gang = self._registry.gangs().get(gang)
        here = () if local_gang is None else local_gang.pods
        pods = [pod for pod in here if is_meant(pod, order)]
        return EvidenceRequest(
            gang=gang,
            incident=incident.name,
            verb=order.verb,
            found=[found for pod in pods for found in self._containers.at_work(pod)],
            pods={pod.uid: pod.name for pod in pods},
            with_logs=local_gang is None or local_gang.keeps_logs,
            checkpointed=checkpointed(pods, incident.phase),
        )

    def _kill(self, incident: OrderedIncident, order: Order, gang: Gang) -> None:
        record = self._journal.stops.get(incident.uid)
        if record is None:
            raise ActionError("no processes are stopped on this node for this incident")
        self._evidence.finish(incident.uid)
        self._listeners.killed(gang)
        # only processes that were stopped for this incident are killed, so repeating it does no harm
        outcome = stop_and_kill.kill(self._recorded(record))
        self._remember(order, gang)
        self._drop(incident.uid)
        self._finish(gang, order, outcome)

    def _release(self, incident_uid: str) -> StopOutcome:
        record = self._journal.stops.get(incident_uid)
        if record is None:
            return StopOutcome(0)
        outcome = self._continue(record)
        self._drop(incident_uid)
        return outcome

    def _continue(self, record: StopRecord) -> StopOutcome:
        keep = [
            process_ref.pid
            for process_ref in record.already_stopped
            if start_ticks(process_ref.pid) == process_ref.start_ticks
        ]
        return stop_and_kill.resume(self._recorded(record), keep)

    def _drop(self, *incidents: str) -> None:
        for incident in incidents:
            self._holder.drop(incident)
            self._evidence.forget(incident)
        # stops that remain on a full disk are resumed again by the next agent, which does no harm
        with contextlib.suppress(ActionError):
            self._journal.drop_stops(incidents)
        self._note_stopped()

    def _recorded(self, record: StopRecord) -> list[RunningContainer]:
        wanted = {(container.pod_uid, container.id) for container in record.containers}
        uids = {container.pod_uid for container in record.containers}
        here = [found for uid in uids for found in self._containers.of_pod(uid)]
        return [container for container in here if (container.pod_uid, container.id) in wanted]

    def expire(self) -> None:
        """Resume processes that were not ended in time, and forget orders that are over."""
        now_s = self._clock()
        for incident, record in list(self._journal.stops.items()):
            if self._left_s(incident, record) <= 0:
                self._try(f"cannot resume {record.gang}", partial(self._expired, incident, record))
        self._open_kills = [
            open_kill for open_kill in self._open_kills if open_kill.order.expires_s > now_s
        ]

    def _expired(self, incident: str, record: StopRecord) -> None:
        self._release(incident)
        self._listeners.passed_over(f"resumed {record.gang}: stop order expired without a Kill")

    def repeat(self) -> None:
        """Kill pods that were marked for deletion after a KillTerminating arrived."""
        for open_kill in self._open_kills:
            self._try(
                f"cannot carry out order {open_kill.order.id}",
                partial(self._kill_marked, open_kill),
            )

    def _kill_marked(self, kill: OpenKill) -> None:
        local_gang = self._registry.gangs().get(kill.gang)
        pods = [pod for pod in (local_gang.pods if local_gang else ()) if is_meant(pod, kill.order)]
        if kill.is_fresh(pods):
            self._listeners.killed(kill.gang)
        ack = kill.carry_out(pods, self._containers.of_work)
        if ack != kill.reported_ack:
            kill.reported_ack = ack
            self._ack(kill.gang, ack)

    def _ended_before(self, order: Order) -> set[str]:
        """Pods that an earlier agent ended for a KillTerminating."""
        acks = [done.ack for done in self._journal.done if done.id == order.id]
        return {uid for ack in acks if ack is not None for uid in ack.pods}

    def _finish(
        self,
        gang: Gang,
        order: Order,
        outcome: StopOutcome,
        bundle: str | None = None,
    ) -> None:
        left = ", ".join(map(str, outcome.left[:16]))
        ack = Ack(
            order.id,
            order.verb,
            AckResult.PARTIAL if outcome.left else AckResult.DONE,
            outcome.count,
            f"could not stop pid {left}" if left else None,
            bundle,
        )
        self._ack(gang, ack)

    def _ack(self, gang: Gang, ack: Ack) -> None:
        try:
            self._journal.finish(ack)
        except ActionError as error:
            ack = replace(ack, text=f"{ack.text or ''}; {error}".removeprefix("; "))
        key = key_of(gang)
        others = [other_ack for other_ack in self.acks(gang) if other_ack.order != ack.order]
        self._acks[key] = (*others, ack)[-_ACKS_REPORTED:]
        self._listeners.acked(gang, ack)

    def _note_stopped(self) -> None:
        stops = self._journal.stops
        self._stopped = frozenset(stop.gang for stop in stops.values())
        self._until_s = {key: at_s for key, at_s in self._until_s.items() if key in stops}
