"""Pods that keep GPUs and do nothing with them for days; what is known of them outlives the agent.

A pod is idle while no kernel runs on any of its GPUs and its containers use next to no CPU. Only reported.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kcover_ebpf.agent.gpu_pods import GpuPod
from kcover_ebpf.agent.state_file import write_json
from kcover_ebpf.api.codec import decode
from kcover_ebpf.api.fault_report import IdlePod
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.hardware.telemetry.use import GpuState
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
        self._holders = {each.uid: each for each in _load(file)}
        self._cpu_s: dict[str, tuple[float, float]] = {}
        self._turn_s = 0.0

    def update(self, states: Iterable[GpuState], pods: Iterable[GpuPod], now_s: float) -> None:
        """Take readings of all GPUs, and who uses them; `now_s`: unix seconds."""
        uses = {each.reading.uuid: each.use for each in states}
        if not uses or not self._is_synced():
            return
        held: dict[str, set[str]] = {}
        for each in pods:
            held.setdefault(each.pod.uid, set()).add(each.gpu.uuid)
        for uid, gpus in held.items():
            known = self._holders.get(uid) or _Holder(uid, (), now_s, now_s)
            self._holders[uid] = replace(known, gpus=tuple(sorted({*known.gpus, *gpus})))
        is_turn = not 0 <= now_s - self._turn_s < IDLE_TURN_S
        for uid, known in list(self._holders.items()):
            pod = self._pod_of(uid)
            if pod is None or pod.ended:
                del self._holders[uid]
                self._cpu_s.pop(uid, None)
                continue
            self._holders[uid] = self._after(known, uses, now_s, is_turn=is_turn)
        if is_turn:
            self._turn_s = now_s
            _save(self._file, tuple(self._holders.values()))

    def _after(
        self, known: _Holder, uses: Mapping[str, GpuUse], now_s: float, *, is_turn: bool
    ) -> _Holder:
        now = [uses.get(each, GpuUse.UNKNOWN) for each in known.gpus]
        if is_turn:
            known = replace(known, cores=self._cores(known.uid, now_s))
        works = any(each in {GpuUse.WORKING, GpuUse.LOW_POWER} for each in now)
        if (
            works
            or (known.cores or 0.0) >= IDLE_CPU_CORES
            or not 0 <= now_s - known.seen_s < IDLE_GAP_S
        ):
            return replace(known, since_s=now_s, seen_s=now_s)
        if all(each in _IDLE for each in now):
            return replace(known, seen_s=now_s)
        return known

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
        for each in self._holders.values():
            pod = self._pod_of(each.uid)
            if pod is not None:
                found[pod.namespace, pod.name] = max(0.0, each.seen_s - each.since_s)
        return found

    def reported(self, now_s: float) -> tuple[IdlePod, ...]:
        """Those that are idle for long enough, the longest first."""
        found = []
        for each in self._holders.values():
            pod = self._pod_of(each.uid)
            if pod is None or each.seen_s - each.since_s < self._after_s:
                continue
            cores = None if each.cores is None else round(each.cores, 3)
            age_s = round(now_s - each.since_s, 3)
            found.append(IdlePod(pod.namespace, pod.name, pod.uid, age_s, each.gpus[:_MOST], cores))
        found.sort(key=lambda each: -each.age_s)
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
