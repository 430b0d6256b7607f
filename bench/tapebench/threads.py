"""A scripted thread in virtual time: what it did between two passes, and what the sampler says of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bench.tapebench.activities import FUTEX, IDLE, MODULES, YIELD, Activity
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.ids import NS, Pid, Tid

_MOVED_SHARE = 0.02
_FUTEX_PRIVATE = 128


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
    _seen: tuple[int, int, int] = (-2, 0, 0)
    _seen_state: TaskState = TaskState.OTHER
    _seen_cpu_ns: int = 0
    _seen_ns: int = 0
    _site_since_ns: int = 0
    _moved: bool = field(default=True)

    def become(self, activity: Activity, now_ns: int) -> None:
        """Do something else from now on."""
        if activity is self.now:
            return
        if activity.burns or not self.now.burns:
            self.burst_ns = now_ns
        self.now, self.since_ns = activity, now_ns
        self.switches += 1

    def spend(self, duration_ns: int) -> None:
        """Continue the present activity for so long."""
        self.cpu_ns += int(self.now.share * duration_ns)
        if self.now is IDLE:
            self.cpu_ns += duration_ns // 20_000
            self.switches += max(1, duration_ns * 10 // NS)
        elif self.now.syscall == YIELD:
            self.switches += duration_ns * 1000 // NS

    def sample(self, now_ns: int, detail: int) -> ThreadSample | None:
        """What the sampler sends at this pass; `detail`: 0 off, 1 the first such pass, 2 later ones."""
        act = self.now
        site = self._site()
        used_ns = self.cpu_ns - self._seen_cpu_ns
        moved = site != self._seen or used_ns > _MOVED_SHARE * (now_ns - self._seen_ns)
        ran = used_ns > 0
        state_changed = act.state is not self._seen_state
        if moved:
            self._site_since_ns = now_ns
        news = moved or self._moved or state_changed or detail == 1 or (detail and ran)
        self._seen, self._seen_state, self._seen_cpu_ns = site, act.state, self.cpu_ns
        self._seen_ns, self._moved = now_ns, moved
        return self._made(now_ns, site) if news else None

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
        depth = self.rng.randrange(40) if act.burns and act.syscall == NO_SYSCALL else 0
        place = act.argument if call != NO_SYSCALL else 0
        return call, place, 0x7000_0000 + self.tid * 4096 + depth * 64

    def _made(self, now_ns: int, site: tuple[int, int, int]) -> ThreadSample:
        act = self.now
        module = self.rng.choices(act.modules, cum_weights=act.weights)[0]
        vary = self.rng.getrandbits(30) if act.burns else 0
        left_ns = self.burst_ns if act is not IDLE else now_ns - self.rng.randrange(NS // 10)
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
        )
