"""Pods that keep GPUs and do nothing with them for days; what is known of them outlives the agent.

A pod is idle while no kernel runs on any of its GPUs and its containers use next to no CPU. Only reported.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path

from kcover_ebpf.agent.node_health.gpu_pods import GpuPod
from kcover_ebpf.agent.state_file import write_json
from kcover_ebpf.api.codec import decode
from kcover_ebpf.api.fault_report import IdlePod
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.telemetry.use import GpuState
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.tunables.agent import IDLE_CPU_CORES, IDLE_GAP_S, IDLE_TURN_S

_MOST = 64
"""Reported at once."""
_IDLE = (GpuUse.IDLE, GpuUse.MEMORY_HELD)


@dataclass(frozen=True, slots=True)
class _Holder:
    """A pod that was seen to use GPUs; times in unix seconds."""

    uid: str
    gpus: tuple[str, ...]
    """UUIDs; they stay its own while it lives, also when it has let go of them."""
    since_s: float
    """Since when it has been idle."""
    seen_s: float
    """When its GPUs were read last."""
    cores: float | None = None
    """CPUs used over the last turn; None while that is not known."""


@dataclass(frozen=True, slots=True)
class _Kept:
    holders: tuple[_Holder, ...] = field(default=())


class IdlePods:
    """Used by one thread."""

    def __init__(
        self,
        file: Path,
        after_s: float,
        pod_of: Callable[[str], Pod | None],
        cpu_s_of: Callable[[str], float | None],
        is_synced: Callable[[], bool],
    ) -> None:
        """`after_s`: idle for so long is reported; `pod_of`, `cpu_s_of`: a pod and its CPU time, by uid.

        `is_synced`: all pods of the node are known, so that one which is not is gone.
        """
        self._file, self._after_s, self._is_synced = file, after_s, is_synced
        self._pod_of, self._cpu_s_of = pod_of, cpu_s_of
        self._holders = {holder.uid: holder for holder in _load(file)}
        self._cpu_s: dict[str, tuple[float, float]] = {}
        self._turn_s = 0.0

    def update(self, states: Iterable[GpuState], pods: Iterable[GpuPod], now_s: float) -> None:
        """Take readings of all GPUs, and who uses them; `now_s`: unix seconds."""
        uses = {state.reading.uuid: state.use for state in states}
        if not uses or not self._is_synced():
            return
        held: dict[str, set[str]] = {}
        for gpu_pod in pods:
            held.setdefault(gpu_pod.pod.uid, set()).add(gpu_pod.gpu.uuid)
        for uid, gpus in held.items():
            known_holder = self._holders.get(uid) or _Holder(uid, (), now_s, now_s)
            self._holders[uid] = replace(
                known_holder, gpus=tuple(sorted({*known_holder.gpus, *gpus}))
            )
        is_turn = not 0 <= now_s - self._turn_s < IDLE_TURN_S
        for uid, known_holder in list(self._holders.items()):
            pod = self._pod_of(uid)
            if pod is None or pod.ended:
                del self._holders[uid]
                self._cpu_s.pop(uid, None)
                continue
            self._holders[uid] = self._after(known_holder, uses, now_s, is_turn=is_turn)
        if is_turn:
            self._turn_s = now_s
            _save(self._file, tuple(self._holders.values()))

    def _after(
        self, known_holder: _Holder, uses: Mapping[str, GpuUse], now_s: float, *, is_turn: bool
    ) -> _Holder:
        now = [uses.get(gpu, GpuUse.UNKNOWN) for gpu in known_holder.gpus]
        if is_turn:
            known_holder = replace(known_holder, cores=self._cores(known_holder.uid, now_s))
        works = any(use in {GpuUse.WORKING, GpuUse.LOW_POWER} for use in now)
        if (
            works
            or (known_holder.cores or 0.0) >= IDLE_CPU_CORES
            or not 0 <= now_s - known_holder.seen_s < IDLE_GAP_S
        ):
            return replace(known_holder, since_s=now_s, seen_s=now_s)
        if all(use in _IDLE for use in now):
            return replace(known_holder, seen_s=now_s)
        return known_holder

    def _cores(self, uid: str, now_s: float) -> float | None:
        used_s, before = self._cpu_s_of(uid), self._cpu_s.pop(uid, None)
        if used_s is None:
            return None
        self._cpu_s[uid] = now_s, used_s
        if before is None or now_s <= before[0]:
            return None
        return max(0.0, (used_s - before[1]) / (now_s - before[0]))

    def idle_s(self) -> dict[tuple[str, str], float]:
        """Namespace and name of each pod with GPUs: for how long it has been idle, 0 while it works."""
        found = {}
        for holder in self._holders.values():
            pod = self._pod_of(holder.uid)
            if pod is not None:
                found[pod.namespace, pod.name] = max(0.0, holder.seen_s - holder.since_s)
        return found

    def reported(self, now_s: float) -> tuple[IdlePod, ...]:
        """Those that are idle for long enough, the longest first."""
        found = []
        for holder in self._holders.values():
            pod = self._pod_of(holder.uid)
            if pod is None or holder.seen_s - holder.since_s < self._after_s:
                continue
            cores = None if holder.cores is None else round(holder.cores, 3)
            age_s = round(now_s - holder.since_s, 3)
            found.append(
                IdlePod(pod.namespace, pod.name, pod.uid, age_s, holder.gpus[:_MOST], cores)
            )
        found.sort(key=lambda idle_pod: -idle_pod.age_s)
        return tuple(found[:_MOST])


def _load(file: Path) -> tuple[_Holder, ...]:
    try:
        return decode(_Kept, json.loads(file.read_text(encoding="utf-8"))).holders
    except (OSError, ValueError, RecursionError, ObjectError):
        return ()


def _save(file: Path, holders: tuple[_Holder, ...]) -> None:
    """A disk that is full or broken costs memory of the past only."""
    with contextlib.suppress(OSError):
        write_json(file, _Kept(holders))
