"""A scripted thread in virtual time: what it did between two passes, and what the sampler says of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.tapebench.activities import FUTEX, IDLE, MODULES, YIELD, Activity
from kcover_ebpf.facts.kernel import NO_SYSCALL, Detail, TaskState, ThreadSample
from kcover_ebpf.ids import NS, Pid, Tid

_MOVED_SHARE = 0.02
_FUTEX_PRIVATE = 128
_SLEEPS_BETWEEN = 3, 20
"""Between two activities that use a CPU; measured with stubs: 7 to 40 in a step."""


@dataclass(slots=True)
class ScriptedThread:
    """One thread; times are boottime nanoseconds."""

    pid: int
    tid: int
    start_ns: int
    rng: random.Random
    now: Activity = IDLE
    cpu_ns: int = 0
    switches: int = 0
    burst_ns: int = 0
    """When it got its last CPU: the kernel's mark of when it left it is as early as that."""
    since_ns: int = 0
    """When the present activity began."""
    _spent_ns: int = 0
    """Until when `cpu_ns` and `switches` are counted."""
    _seen: tuple[int, int, int] = (-2, 0, 0)
    _seen_state: TaskState = TaskState.OTHER
    _seen_cpu_ns: int = 0
    _seen_switches: int = 0
    _seen_ns: int = 0
    """When the sampler visited it last; 0 before."""
    _site_since_ns: int = 0
    _moved: bool = False

    def __post_init__(self) -> None:
        """It has used nothing before it began."""
        self._spent_ns = self.start_ns

    def become(self, activity: Activity, now_ns: int) -> None:
        """Do something else from now on."""
        if activity is self.now:
            return
        self.spend(now_ns)
        if activity.burns or not self.now.burns:
            self.burst_ns = now_ns
        if activity.burns and self.now.burns:
            # a batch, an interpreter's lock, a thread that launches
            self.switches += self.rng.randint(*_SLEEPS_BETWEEN)
        self.now, self.since_ns = activity, now_ns
        self.switches += 1

    def spend(self, until_ns: int) -> None:
        """Count what the present activity used until now."""
        duration_ns = until_ns - self._spent_ns
        if duration_ns <= 0:
            return
        self._spent_ns = until_ns
        self.cpu_ns += int(self.now.share * duration_ns)
        if not self.now.burns:
            # a yield is no voluntary switch (kernel/sched/core.c, __schedule)
            self.switches += duration_ns * self.now.wakes_s // NS

    def sample(
        self, now_ns: int, detail: Detail, *, begins: bool, is_lead: bool
    ) -> ThreadSample | None:
        """What the sampler sends of it at a visit (bpf/sample.bpf.h); `begins`: the first in such detail."""
        self.spend(now_ns)
        act = self.now
        is_judged = is_lead or detail is Detail.ALL or act.state is not TaskState.SLEEPING
        site = self._site()
        if not self._seen_ns:
            moved, news, self._site_since_ns = False, is_judged, self.burst_ns
        else:
            used_ns = self.cpu_ns - self._seen_cpu_ns
            moved = site != self._seen or used_ns > _MOVED_SHARE * (now_ns - self._seen_ns)
            changed = act.state is not self._seen_state
            ran = used_ns > 0 or self.switches != self._seen_switches
            in_detail = begins or (detail is not Detail.OFF and (ran or changed))
            news = moved or self._moved or changed or (is_judged and in_detail)
        if moved:
            self._site_since_ns = now_ns
        sample = self._made(now_ns, site) if news else None
        self._seen, self._seen_state, self._seen_cpu_ns = site, act.state, self.cpu_ns
        self._seen_ns, self._seen_switches, self._moved = now_ns, self.switches, moved
        return sample

    @property
    def is_forsaken(self) -> bool:
        """It sleeps at a futex of its own process without a time-out."""
        sleeps = self.now.state is TaskState.SLEEPING and not self.now.burns
        return sleeps and self.now.syscall == FUTEX and not self.now.timed

    def _site(self) -> tuple[int, int, int]:
        act = self.now
        call = act.syscall
        if act.syscall == YIELD and self.rng.random() < 0.5:
            call = NO_SYSCALL
        # code that computes is found at other depths of its stack; a wait is always the same call
        varies = act.burns and act.syscall == NO_SYSCALL and not act.in_place
        depth = self.rng.randrange(40) if varies else 0
        place = act.argument if call != NO_SYSCALL else 0
        return call, place, 0x7000_0000 + self.tid * 4096 + depth * 64

    def _made(self, now_ns: int, site: tuple[int, int, int]) -> ThreadSample:
        act = self.now
        modules, weights = act.modules, act.weights
        module = modules[0]
        if len(modules) > 1:
            module = self.rng.choices(modules, cum_weights=weights)[0]
        vary = self.rng.getrandbits(30) if act.burns and not act.in_place else 0
        left_ns = self.burst_ns
        if act.wakes_s and not act.burns:
            left_ns = max(left_ns, now_ns - self.rng.randrange(NS // act.wakes_s))
        return ThreadSample(
            boottime_ns=now_ns,
            pid=Pid(self.pid),
            tid=Tid(self.tid),
            start_ns=self.start_ns,
            state=act.state,
            syscall=site[0],
            args=(site[1], vary or _FUTEX_PRIVATE, 0xFFFFFFFF, int(act.timed), 0, 0),
            user_sp=site[2],
            user_ip=MODULES[module] + 0x10,
            site_since_ns=self._site_since_ns,
            idle_since_ns=left_ns,
            cpu_ns=self.cpu_ns,
            run_delay_ns=0,
            voluntary_count=self.switches,
            comm="python3",
            previous_ns=self._seen_ns,
        )
