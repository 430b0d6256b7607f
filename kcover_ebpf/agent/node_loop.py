"""The loop of a node: one sampler for all gangs; facts are routed to the gang that their process belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kcover_ebpf.agent.containers import Containers, processes
from kcover_ebpf.agent.job_memories import JobMemories
from kcover_ebpf.agent.pod_registry import LocalGang, PodRegistry
from kcover_ebpf.api.drill import consents
from kcover_ebpf.api.job_kinds import Gang, counts_whole_gang
from kcover_ebpf.devices.watch import DeviceWatch
from kcover_ebpf.diagnosis.membership.rank_numbers import INDEX, RANK_ENVIRON
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.devices import AnnouncedFault
from kcover_ebpf.facts.kernel import Fact, ProcessExit, ProcessFork, ProcessTotals, Tick
from kcover_ebpf.host import procfs
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.kernel import owners
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.agent import NEXT_START_NS
from kcover_ebpf.watching.job_watch import JobWatch, RankSources
from kcover_ebpf.watching.judging import ObservationSink
from kcover_ebpf.watching.loop import SamplingLoop


class GangWatch:
    """State of one watched gang on this node."""

    def __init__(self, local_gang: LocalGang, watch: JobWatch) -> None:
        self.here = local_gang
        self.watch = watch
        self.pods: dict[Pid, str] = {}
        """Process -> uid of its pod; includes processes that ended."""
        self.stopped_by_us = False
        """True while an order keeps the gang stopped; it is then not judged."""


class PassListener(Protocol):
    """Receives what the loop observes, in the loop's own thread."""

    def on_pass(self, gangs: Iterable[GangWatch]) -> None:
        """Called after a pass, and after an announced fact was judged."""
        ...

    def on_lag(self, lag_s: float) -> None:
        """Called with the time from when a pass was due until it was over."""
        ...

    def on_node_fact(self, fact: Fact) -> None:
        """Called with a fact about this node rather than a process."""
        ...

    def on_announced(self, fault: AnnouncedFault, pods: frozenset[str]) -> None:
        """Called with a fault of a device of this node; `pods`: uids of the pods whose processes it affects."""
        ...


class NodeLoop(SamplingLoop):
    """Watches the gangs of a registry until it is asked to stop. Not thread-safe, except `forget`."""

    def __init__(  # noqa: PLR0913 - one part of the node each
        self,
        kernel: KernelSampler,
        devices: DeviceWatch,
        registry: PodRegistry,
        containers: Containers,
        settings: Settings,
        listener: PassListener,
        *,
        is_stopped_by_us: Callable[[Gang], bool],
        memories: JobMemories,
        sinks: Callable[[Gang], Sequence[ObservationSink]] = lambda _: (),
        sources: RankSources | None = None,
        drilled: Callable[[], Pid | None] = lambda: None,
    ) -> None:
        """`is_stopped_by_us`: our order keeps this gang stopped; `sinks`: receivers of the verdicts on a gang.

        `drilled`: the process for which a drill requests an Xid, returned once; called at each pass.

        `sources`: readers of what ranks wrote; None: this process reads it.
        """
        super().__init__(kernel, devices, settings, sources)
        self._registry, self._containers, self._listener = registry, containers, listener
        self._is_stopped_by_us, self._sinks = is_stopped_by_us, sinks
        self._memories, self._on_lag = memories, listener.on_lag
        self._drilled = drilled
        self._nccl = devices.nccl
        self._identities = Identities()
        self._gangs: dict[Gang, GangWatch] = {}
        self._owners: dict[Pid, GangWatch] = {}
        self._version = -1
        self._calm_until_ns = 0
        self._forgotten: set[Gang] = set()

    @property
    def gangs(self) -> Iterable[GangWatch]:
        return self._gangs.values()

    def forget(self, gang: Gang) -> None:
        """Forget the state of a gang whose processes we end; may be called from any thread."""
        self._forgotten.add(gang)

    @property
    def _watches(self) -> Sequence[JobWatch]:
        return [gang.watch for gang in self._gangs.values()]

    @property
    def _members(self) -> Collection[Pid]:
        return self._owners.keys()

    @property
    def _ease(self) -> float:
        # never longer than the regular pause: pods and orders are followed at passes
        return min([1.0, *(watch.ease for watch in self._watches)])

    def step(self) -> None:
        """As `SamplingLoop.step`, for the gangs that the registry has now."""
        self._follow_registry()
        self._follow_drill()
        super().step()

    def _follow_drill(self) -> None:
        """Judge as if a GPU had failed: only for a process of a pod that consents, no matter which program asked."""
        pid = self._drilled()
        owner = self._owners.get(pid) if pid is not None else None
        if pid is None or owner is None or self._devices is None:
            return
        pod = self._registry.pod(owner.pods.get(pid, ""))
        if pod is not None and consents(pod.labels):
            for fault in self._devices.drilled(pid):
                self._follow(fault)

    def _judge(self, due: Sequence[JobWatch]) -> None:
        for gang in self._gangs.values():
            if gang.watch not in due:
                continue
            gang.stopped_by_us = self._is_stopped_by_us(gang.here.gang)
            if not gang.stopped_by_us and gang.here.gang not in self._forgotten:
                gang.watch.judge()
                gang.watch.publish_table()
        self._listener.on_pass(self._gangs.values())
        self._memories.save(procfs.boottime_ns() / NS)

    def _hear(self, events: Iterable[Fact]) -> bool:
        if self._take(events):
            # an announced fault is judged by itself: a pass over all gangs would cost more
            self._judge(self._watches)
        return self._registry.version != self._version or bool(self._forgotten)

    def _route(self, fact: Fact) -> bool:
        if isinstance(fact, Tick):
            for gang in self._gangs.values():
                gang.watch.take(fact)
            return False
        pid = getattr(fact, "pid", None)
        owner = self._owners.get(pid) if pid is not None else None
        if owner is None and isinstance(fact, ProcessTotals):
            owner = self._adopt(fact)
        if owner is None:
            self._listener.on_node_fact(fact)
            return False
        if isinstance(fact, ProcessFork):
            self._own(fact.child_pid, owner, owner.pods.get(fact.pid, ""))
            owner.watch.members.add(fact.child_pid)
        announced = owner.watch.take(fact)
        if isinstance(fact, ProcessExit):
            self._owners.pop(fact.pid, None)
            self._forget_process(fact)
        else:
            self._listener.on_node_fact(fact)
        return announced

    def _on_announced(self, fault: AnnouncedFault) -> None:
        owners = ((pid, self._owners.get(pid)) for pid in fault.holders)
        uids = {owner.pods.get(pid, "") for pid, owner in owners if owner is not None}
        self._listener.on_announced(fault, frozenset(uids - {""}))

    def _adopt(self, totals: ProcessTotals) -> GangWatch | None:
        """Adopt a child that is sampled but was never announced, because the record of its fork was lost."""
        owner = self._owners.get(totals.ppid)
        if owner is not None:
            self._own(totals.pid, owner, owner.pods.get(totals.ppid, ""))
            owner.watch.members.add(totals.pid)
        return owner

    def _own(self, pid: Pid, owner_watch: GangWatch, pod_uid: str) -> None:
        self._owners[pid] = owner_watch
        owner_watch.pods[pid] = pod_uid

    # --- members of the gangs

    def _follow_registry(self) -> None:
        for gang in list(self._forgotten):
            self._drop(gang)
            self._forgotten.discard(gang)
            self._version = -1
            # a process that is dying now must not become a member of the next start
            self._calm_until_ns = procfs.boottime_ns() + NEXT_START_NS
        if self._version == self._registry.version:
            return
        self._version = self._registry.version
        now = self._registry.gangs()
        for gang in self._gangs.keys() - now.keys():
            self._drop(gang)
        for gang, local_gang in now.items():
            known_watch = self._gangs.get(gang)
            if known_watch is not None and known_watch.here.policy != local_gang.policy:
                self._drop(gang)
                known_watch = None
            if known_watch is None:
                known_watch = self._gangs[gang] = GangWatch(local_gang, self._new_watch(local_gang))
            known_watch.here = local_gang
            self._leave(known_watch)
        self._search.hurry()

    def _new_watch(self, local_gang: LocalGang) -> JobWatch:
        gang, counted = local_gang.gang, all(map(counts_whole_gang, local_gang.pods))
        tracker = Tracker(f"{gang.namespace}/{gang.name}", self._registry.node)
        settings = Settings(
            period_s=self._settings.period_s,
            suspicious_period_s=self._settings.suspicious_period_s,
            policy=local_gang.policy,
        )
        watch = JobWatch(
            self._kernel,
            tracker,
            self._table,
            settings,
            self._sinks(gang),
            whole=False,
            environ=RANK_ENVIRON if counted else RANK_ENVIRON - {INDEX},
            identities=self._identities,
            nccl=self._nccl,
            reads_stacks=True,
            sources=self._sources,
        )
        watch.job.remember(self._memories.of(gang))
        return watch

    def _leave(self, known_watch: GangWatch) -> None:
        """Stop watching processes whose pod is being deleted: how they end is no fault."""
        going = {pod.uid for pod in known_watch.here.pods if pod.deleted_s is not None}
        if going and going & set(known_watch.pods.values()):
            self._drop(known_watch.here.gang)
            self._gangs[known_watch.here.gang] = GangWatch(
                known_watch.here, self._new_watch(known_watch.here)
            )

    def _drop(self, gang: Gang) -> None:
        known_watch = self._gangs.pop(gang, None)
        if known_watch is None:
            return
        known_watch.watch.close()
        for pid in [pid for pid, owner in self._owners.items() if owner is known_watch]:
            del self._owners[pid]
            self._kernel.unwatch(pid)
            self._reader.forget(pid)
            self._identities.forget(pid)

    def _join_new_members(self) -> None:
        # the kernel reports forks; new containers, and processes moved into one, must be searched for
        now_ns = procfs.boottime_ns()
        if now_ns < self._calm_until_ns or not self._search.is_due(now_ns, self._kernel.strangers):
            return
        known, waits = len(self._owners), False
        for gang in self._gangs.values():
            if self._is_stopped_by_us(gang.here.gang):
                waits = True
                continue
            for uid, pids in self._listed(gang.here).items():
                fresh = self._search.living(pids) - self._owners.keys()
                for pid in fresh:
                    self._own(pid, gang, uid)
                gang.watch.join(fresh, owners.of_pod(uid))
        self._search.listed(now_ns, found=waits or len(self._owners) > known)

    def _listed(self, local_gang: LocalGang) -> Mapping[str, set[int]]:
        return {pod.uid: processes(self._containers.of_ranks(pod)) for pod in local_gang.live}
