"""One tape: a scripted gang, its sensor, and the judge that ships, in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from bench.tapebench.faults import Fault, port_lost, sides
from bench.tapebench.gang import FOREVER_NS, Gang, Round
from bench.tapebench.life import any_phase
from bench.tapebench.sensor import ScriptedSensor
from bench.tapebench.shapes import LOADER_PID, Shape, pid_of, start, step
from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.host import CollectiveRank, CollectivesSeen
from kcover_ebpf.facts.kernel import Fact, Tick
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Verdict, VerdictKind
from kcover_ebpf.settings import Act, Policy, Settings
from kcover_ebpf.watching.judging import ANNOUNCED
from kcover_ebpf.watching.pacing import Pacing, pause_s

_RAS_FIRST_NS, _RAS_PERIOD_NS = 3 * NS, 5 * NS
"""NCCL is asked three times within three seconds, and then more rarely."""
_SETTINGS = Settings()
_WATCH_NS = 180 * NS
"""Seconds after a fault at which the tape ends."""


@dataclass
class Outcome:
    """What was reported, and what would have been done about it."""

    shape: str
    seed: int
    fault: str = ""
    ranks: int = 8
    hours: float = 0.0
    passes: int = 0
    suspicious: int = 0
    stalled: int = 0
    reported: Counter[str] = field(default_factory=Counter)
    shutdown: str = ""
    """The verdict that would have ended the job; empty if none."""
    shutdown_s: float | None = None
    """Seconds from the beginning of the fault, or of the tape."""
    shutdown_rank: int | None = None
    evidence: tuple[str, ...] = ()
    detected_s: float | None = None
    """First fault verdict, or UNKNOWN that names a rank, after the fault began."""
    rank: int | None = None
    """The faulty one."""
    named: tuple[int, ...] = ()
    """Ranks named after the fault began, in that order."""
    certainty: str = ""
    """That of the last verdict reported after the fault began; empty if none was."""
    acts_s: float | None = None
    """When an armed job is ended for it, in seconds after the fault began; None for never."""
    text: str = ""


class Tape:
    """Plays one shape, perhaps with a fault."""

    def __init__(
        self, shape: Shape, seed: int, fault: Fault | None = None, policy: Policy | None = None
    ) -> None:
        """`policy`: what it is judged by; None: the defaults."""
        self.shape, self._fault = shape, fault
        self._rng = rng = random.Random(f"{shape.name} {seed} {fault.name if fault else ''}")
        self._dice = dice = random.Random(f"passes {shape.name} {seed}")
        """When the job is sampled, and what is seen then: what it does is independent of that."""
        self.gang = Gang(
            dice,
            shape.world,
            proxies=shape.proxies,
            autograd=shape.autograd,
            background=shape.background,
            helper=shape.helper,
        )
        self._sensor = ScriptedSensor(self.gang, rdma=shape.rdma)
        self._sensor.connections.outside = shape.http
        self.job = Job(policy or Policy(), SyscallTable("x86_64"))
        self._tracker, self._pacing = Tracker("job", "host"), Pacing(self.job)
        self._outcome = Outcome(shape.name, seed, fault.name if fault else "", shape.world)
        self._pending = self._arrivals()
        self._steps = 0
        self._pause_ns = 0
        is_plain = shape.pause is None or shape.pause is any_phase
        self._ras = "evaluation" in shape.name or (is_plain and rng.random() < 0.5)
        self._ras_since_ns: int | None = None
        self._ras_next_ns = 0
        self._ras_rounds = 0
        self._began_ns = FOREVER_NS
        self._victim = rng.randrange(shape.world)
        self._late: list[tuple[int, Fault]] = []

    def _arrivals(self) -> list[tuple[int, int, int, int | None]]:
        """(when, pid, parent, rank), soonest first."""
        begin_ns = 1000 * NS + self._rng.randrange(NS)
        last = self._rng.randrange(self.shape.world)
        found: list[tuple[int, int, int, int | None]] = []
        for rank in range(self.shape.world):
            late_s = self._rng.uniform(0, 0.5)
            if rank == last:
                late_s = self._rng.uniform(*self.shape.late_s)
            at_ns = begin_ns + int(late_s * NS)
            found.append((at_ns, pid_of(rank), 1, rank))
            if self.shape.loaders or (self._fault is not None and self._fault.needs_loader):
                found.append((at_ns + NS, LOADER_PID + rank, pid_of(rank), None))
        self.gang.now_ns = begin_ns - NS
        return sorted(found, key=lambda pair: pair[0])

    def play(self, hours: float) -> Outcome:
        """Run for the given time, or until the job would have been ended, or a while after the fault."""
        begin_ns = self.gang.now_ns
        end_ns = begin_ns + int(hours * 3600 * NS)
        fault_ns = FOREVER_NS
        if self._fault is not None:
            fault_ns = begin_ns + self._trained_after_ns()
            end_ns = fault_ns + _WATCH_NS
        looked_ns = begin_ns
        while self.gang.now_ns < end_ns and not self._outcome.shutdown:
            pause_ns = (
                pause_s(
                    _SETTINGS,
                    self._pacing.ease,
                    self._dice,
                    self.gang.now_ns / NS,
                    urgent=self.job.urgent,
                )
                * NS
            )
            target_ns = self.gang.now_ns + int(pause_ns)
            if self.gang.now_ns < fault_ns <= target_ns and self._fault is not None:
                self._advance(fault_ns)
                if self._begin(self._fault):
                    target_ns = self.gang.now_ns
            self._advance(target_ns)
            self._look(self.gang.now_ns - looked_ns)
            looked_ns = self.gang.now_ns
        self._outcome.hours = (self.gang.now_ns - begin_ns) / NS / 3600
        return self._outcome

    def _trained_after_ns(self) -> int:
        # the start, a dozen steps, and a moment anywhere in a step
        seconds = 130 + 12 * self.shape.step_s + self._rng.uniform(0, max(10.0, self.shape.step_s))
        return int(seconds * NS)

    def _advance(self, to_ns: int) -> None:
        while self.gang.now_ns < to_ns:
            next_ns = self._pending[0][0] if self._pending else FOREVER_NS
            if self.gang.advance(min(to_ns, next_ns)):
                self.gang.begin(self._next_round())
            while self._pending and self._pending[0][0] <= self.gang.now_ns:
                self._arrive(*self._pending.pop(0)[1:])

    def _arrive(self, pid: int, parent: int, rank: int | None) -> None:
        process = self.gang.add(pid, parent, rank, self.gang.now_ns)
        self._feed(self._sensor.seen(process))
        if rank is not None and len(self.gang.ranks()) == self.shape.world:
            self.gang.begin(start(self.shape, self._rng))
        elif rank is not None:
            # who came first waits at the store
            found = start(self.shape, self._rng)
            process.follow(found.plans[rank], found.tails[rank], self.gang.now_ns)

    def _next_round(self) -> Round:
        shape, rng, now_ns = self.shape, self._rng, self.gang.now_ns
        self._steps += 1
        if self._steps == 1:
            if shape.dead_telemetry:
                self._sensor.connections.dead_since_ns = now_ns + int(rng.uniform(60, 600) * NS)
            self._pause_ns = now_ns + int(rng.uniform(*shape.every_s) * NS)
            return step(shape, rng, device_s=rng.uniform(*shape.first_step_s))
        if shape.pause is None or now_ns < self._pause_ns or self._began_ns < FOREVER_NS:
            return step(shape, rng)
        self._pause_ns = now_ns + int(rng.uniform(*shape.every_s) * NS)
        return shape.pause(shape, rng)

    def _feed(self, fact: Fact) -> None:
        self.job.observe(fact)
        if isinstance(fact, ANNOUNCED):
            self._pacing.announce()

    def _begin(self, fault: Fault) -> bool:
        """Make it happen; True if it is announced, so that the next pass begins at once."""
        self._began_ns = self.gang.now_ns
        victim = next(rank for rank in self.gang.ranks() if rank.rank == self._victim)
        self._outcome.rank = self._victim if fault.names_rank else None
        announced = fault.begin(self.gang, victim)
        for fact in announced:
            self._feed(fact)
        if fault.port_down:
            self._late.append((self.gang.now_ns + 60 * NS, fault))
        return bool(announced)

    def _look(self, period_ns: int) -> None:
        now_ns = self.gang.now_ns
        observe = self.job.observe
        if self._pacing.is_attended:
            self._sensor.request(self.job.sampling())
        for fact in self._sensor.sample(set(self.job.connected)):
            observe(fact)
        while self._late and self._late[0][0] <= now_ns:
            self._late.pop()
            for fact in port_lost(self.gang):
                self._feed(fact)
        observe(Tick(now_ns, period_ns, 0, late=False))
        self._outcome.passes += 1
        self._outcome.suspicious += self.job.attention.suspicious
        self._outcome.stalled += self.job.attention.stalled
        if self._pacing.attend(self._tracker.current):
            self._judge()

    def _judge(self) -> None:
        for request in self.job.wants():
            answer = self._sensor.answer(request)
            if answer is not None:
                self._feed(answer)
        self._ask_nccl()
        self._note(self._tracker.update(self.job, 0.0))

    def _ask_nccl(self) -> None:
        now_ns = self.gang.now_ns
        mismatch = self._fault is not None and self._fault.mismatch and now_ns > self._began_ns
        if not (self._ras or mismatch):
            return
        if not (self.job.attention.stalled or self._tracker.latest is not None):
            self._ras_since_ns, self.job.attention.collectives = None, None
            return
        if self._ras_since_ns is None:
            self._ras_since_ns, self._ras_next_ns = now_ns, now_ns + _RAS_FIRST_NS
            self._ras_rounds = sum(self.gang.launched.values())
        if now_ns < self._ras_next_ns:
            return
        self._feed(self._counts(mismatch=mismatch))
        self._ras_since_ns, self._ras_next_ns = now_ns, now_ns + _RAS_PERIOD_NS
        self._ras_rounds = sum(self.gang.launched.values())

    def _counts(self, *, mismatch: bool) -> CollectivesSeen:
        now_ns, since_ns = self.gang.now_ns, self._ras_since_ns or self.gang.now_ns
        seen = CollectivesSeen(now_ns, since_ns, 3)
        if sum(self.gang.launched.values()) != self._ras_rounds:
            return replace(seen, moving=True)
        if mismatch:
            odd, parts = sides(self._victim, self.shape.world)
            odd = tuple(replace(rank, pid=Pid(pid_of(rank.rank))) for rank in odd)
            return replace(seen, odd=odd, sides=parts, equal=False)
        most = max(self.gang.launched.values())
        alive = {rank.rank for rank in self.gang.ranks()}
        behind = tuple(
            CollectiveRank(rank, self.shape.world, "host", Pid(pid_of(rank)), count, most, "0x1")
            for rank, count in self.gang.launched.items()
            if count < most and rank in alive
        )
        return replace(seen, behind=behind, equal=not behind)

    def _note(self, reported_verdict: Verdict | None) -> None:
        outcome = self._outcome
        if reported_verdict is not None:
            named = (
                ""
                if reported_verdict.culprit is None or reported_verdict.culprit.rank is None
                else " names a rank"
            )
            outcome.reported[
                f"{reported_verdict.kind.value} {reported_verdict.cause.value}{named}"
            ] += 1
            self._detect(reported_verdict)
        latest = self._tracker.latest
        if latest is not None:
            self._decide(latest)

    def _detect(self, reported_verdict: Verdict) -> None:
        if self.gang.now_ns < self._began_ns:
            return
        rank = reported_verdict.culprit.rank if reported_verdict.culprit is not None else None
        is_fault = reported_verdict.kind.is_fault or (
            reported_verdict.kind is VerdictKind.UNKNOWN and rank is not None
        )
        if not is_fault:
            return
        if self._outcome.detected_s is None:
            self._outcome.detected_s = (self.gang.now_ns - self._began_ns) / NS
        if rank is not None and rank not in self._outcome.named:
            self._outcome.named = (*self._outcome.named, rank)
        self._outcome.text = f"{reported_verdict.kind.value} {reported_verdict.cause.value}"
        certainty, acts_s = reported_verdict.certainty, reported_verdict.acts_at_s
        self._outcome.certainty = "" if certainty is None else certainty.value
        self._outcome.acts_s = None if acts_s is None else acts_s - self._began_ns / NS

    def _decide(self, latest_verdict: Verdict) -> None:
        outcome = self._outcome
        decision = decide(latest_verdict, Act.SHUTDOWN)
        if decision.act is not Act.SHUTDOWN:
            return
        since_ns = self._began_ns if self._began_ns < FOREVER_NS else 1000 * NS
        outcome.shutdown = f"{latest_verdict.kind.value} {latest_verdict.cause.value}"
        outcome.shutdown_s = (self.gang.now_ns - since_ns) / NS
        outcome.shutdown_rank = (
            latest_verdict.culprit.rank if latest_verdict.culprit is not None else None
        )
        outcome.evidence = tuple(
            f"{evidence.kind.value}: {evidence.text}" for evidence in latest_verdict.evidence
        )
