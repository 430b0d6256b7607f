"""Ranks that step together in virtual time: who does what when, and what comes or goes over which path."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.tapebench.activities import (
    AUTOGRAD,
    BACKGROUND,
    HALTS,
    IDLE,
    IMPORTS,
    LAUNCH,
    PROXY,
    Activity,
)
from bench.tapebench.threads import ScriptedThread
from kcover_ebpf.ids import NS

FOREVER_NS = 1 << 62
Plan = Sequence[tuple[float, Activity]]
"""What a rank does one after the other: (seconds, what)."""
_THREADS = {"main": 0, "proxy": 1, "watchdog": 2, "autograd": 3, "background": 4, "helper": 5}
_RESTS = {"watchdog": IDLE, "background": BACKGROUND}
"""What threads do all the time."""


@dataclass(frozen=True, slots=True)
class Round:
    """What the ranks do until they have all joined, and how long the joint operation then takes."""

    plans: Mapping[int, Plan]
    """By rank."""
    tails: Mapping[int, Activity]
    """How each waits for the end of the round."""
    device_s: float
    """From the moment the last one has joined."""
    data_s: float = 0.0
    """Data flows between the ranks for this long, at the end."""
    loaders: Mapping[int, Activity] = field(default_factory=dict)
    """What the loader of a rank does while that rank carries out its plan, where it is not idle."""


@dataclass(slots=True)
class ScriptedProcess:
    """A rank, or a loader."""

    pid: int
    ppid: int
    rank: int | None
    born_ns: int
    threads: dict[str, ScriptedThread]
    plan: deque[tuple[int, Activity]] = field(default_factory=deque)
    """(end, what); the last one is the tail."""
    written: int = 0
    """Bytes, as of `settle`."""
    _written_ns: int = 0
    alive: bool = True
    joined: bool = False
    """It waits for the end of the round."""
    stuck: bool = False
    has_proxy: bool = True

    @property
    def main(self) -> ScriptedThread:
        """Its first thread."""
        return self.threads["main"]

    def follow(self, plan: Plan, tail: Activity, now_ns: int) -> int:
        """Begin a plan; returns when its tail begins."""
        self.plan.clear()
        end_ns = now_ns
        for seconds, activity in plan:
            end_ns += int(seconds * NS)
            self.plan.append((end_ns, activity))
        self.plan.append((FOREVER_NS, tail))
        self._begin(now_ns)
        return end_ns

    def hold(self, activity: Activity, now_ns: int) -> None:
        """Do this for ever."""
        self.stuck = True
        self.plan = deque([(FOREVER_NS, activity), (FOREVER_NS, activity)])
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        self._count_written(now_ns)
        activity = self.plan[0][1]
        self.joined = len(self.plan) == 1
        grad = self.threads.get("autograd")
        helped = grad is not None and (self.joined or activity is LAUNCH)
        self.main.become(AUTOGRAD if helped else activity, now_ns)
        if grad is not None:
            grad.become(activity if helped else IDLE, now_ns)
        helper = self.threads.get("helper")
        if helper is not None:
            helper.become(activity.beside or IDLE, now_ns)
        proxy = self.threads.get("proxy")
        if proxy is not None:
            proxy.become(PROXY if self.joined and self.has_proxy else IDLE, now_ns)
        halts = activity.state in HALTS
        for name, thread in self.threads.items():
            if halts or name in _RESTS:
                thread.become(activity if halts else _RESTS[name], now_ns)

    def advance(self, to_ns: int) -> None:
        """Do until then what the plan says."""
        while self.plan and self.plan[0][0] <= to_ns:
            self._begin(self.plan.popleft()[0])

    def settle(self, now_ns: int) -> None:
        """Count what its threads used, and what it wrote, until now."""
        for thread in self.threads.values():
            thread.spend(now_ns)
        self._count_written(now_ns)

    def _count_written(self, now_ns: int) -> None:
        rate = sum(thread.now.write_bytes_s for thread in self.threads.values())
        self.written += rate * (now_ns - self._written_ns) // NS
        self._written_ns = now_ns


class Gang:
    """All processes of one job."""

    def __init__(
        self,
        rng: random.Random,
        world: int,
        *,
        proxies: bool,
        autograd: bool,
        background: bool = False,
        helper: bool = False,
    ) -> None:
        """`background`: every rank has a thread that is busy with other things all the time.

        `helper`: it has one for which its first thread may wait.
        """
        self.rng, self.world = rng, world
        self._proxies = proxies
        names = ("autograd", autograd), ("background", background), ("helper", helper)
        self._names = ["main", "proxy", "watchdog", *(name for name, has in names if has)]
        self.processes: dict[int, ScriptedProcess] = {}
        self._by_rank: dict[int, ScriptedProcess] = {}
        self.now_ns = 0
        self.rounds = 0
        self.launched: dict[int, int] = dict.fromkeys(range(world), 0)
        """Rounds that each rank has joined."""
        self.round_end_ns = FOREVER_NS
        self.data_ns = 0
        """Nanoseconds for which data has flowed."""
        self._data_s = 0.0
        self.broken = False
        """No joint operation ends any more."""

    def add(self, pid: int, ppid: int, rank: int | None, now_ns: int) -> ScriptedProcess:
        """A process begins."""
        names = self._names if rank is not None else ["main"]
        threads = {
            name: ScriptedThread(pid, pid + _THREADS[name], now_ns, self.rng, burst_ns=now_ns)
            for name in names
        }
        process = ScriptedProcess(pid, ppid, rank, now_ns, threads, has_proxy=self._proxies)
        self.processes[pid] = process
        if rank is not None:
            self._by_rank[rank] = process
        process.follow((), IMPORTS if rank is not None else IDLE, now_ns)
        process.joined = False
        return process

    def of_rank(self, rank: int) -> ScriptedProcess | None:
        """The process with this number, living or not; None before it came."""
        return self._by_rank.get(rank)

    def ranks(self) -> list[ScriptedProcess]:
        """Living ranks."""
        return [process for process in self._by_rank.values() if process.alive]

    def begin(self, step_round: Round) -> None:
        """The next round begins now."""
        self.rounds += 1
        last_ns = self.now_ns
        complete = len(self.ranks()) == self.world
        for process in self.ranks():
            if process.stuck or process.rank is None:
                complete = False
                continue
            plan, tail = step_round.plans.get(process.rank, ()), step_round.tails[process.rank]
            last_ns = max(last_ns, process.follow(plan, tail, self.now_ns))
            self._load(process, step_round)
        self._data_s = step_round.data_s
        self.round_end_ns = last_ns + int(step_round.device_s * NS) if complete else FOREVER_NS

    def _load(self, process: ScriptedProcess, step_round: Round) -> None:
        for loader in self.processes.values():
            if loader.ppid == process.pid and loader.alive and not loader.stuck:
                work = step_round.loaders.get(process.rank if process.rank is not None else -1)
                seconds = sum(plan for plan, _ in step_round.plans.get(process.rank or 0, ()))
                loader.follow(((seconds, work),) if work is not None else (), IDLE, self.now_ns)

    def advance(self, to_ns: int) -> bool:
        """Continue to the end of the round or to this time, whichever is first; True at the end of the round."""
        end_ns = FOREVER_NS if self.broken else self.round_end_ns
        target_ns = min(to_ns, end_ns)
        for process in self.processes.values():
            if process.alive:
                process.advance(target_ns)
        data_from_ns = end_ns - int(self._data_s * NS)
        self.data_ns += max(0, target_ns - max(self.now_ns, data_from_ns))
        self.now_ns = target_ns
        for rank, process in self._by_rank.items():
            if process.joined and process.alive:
                self.launched[rank] = self.rounds
        return target_ns == end_ns

    def hold(self, process: ScriptedProcess, activity: Activity) -> None:
        """A process does this for ever; who waits for it waits for ever, now or from the next round on."""
        if process.rank is not None and not process.joined:
            self.round_end_ns = FOREVER_NS
        process.hold(activity, self.now_ns)

    def leave(self, process: ScriptedProcess) -> None:
        """A rank is gone; no joint operation ends without it."""
        process.alive = False
        self.broken = True
