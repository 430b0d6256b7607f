"""Reads the logs of the watched pods in its own thread, within a share of one core, and keeps what they show.

Each turn reads a block of each log in order, so that one pod that writes without end delays the others by one block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kcover_ebpf.api.job_kinds import with_ranks
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.hardware.catalog import Catalog
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import KEPT_BYTES, LogFiles, UnsafeLogError
from kcover_ebpf.logs.rules import LogRule
from kcover_ebpf.tunables.agent import LOG_CORE_SHARE, LOG_LINGER_S, LOG_POLL_S
from kcover_ebpf.tunables.host import LONGEST_PHASE_S

_BLOCK_BYTES = 128 << 10
"""0.15 s of work where every line matches a rule, 1 ms for a quiet log."""
_MOST_LOGS = 256
"""Containers of one node: twice the pods that a kubelet runs by default."""
_MOST_KEPT = 2
"""Starts of one container whose log is remembered: the one that runs, and the one that crashed."""
_MOST_REPORTED = 64


@dataclass(slots=True)
class _Watched:
    pod: Pod
    files: LogFiles
    reader: ContainerLogReader
    ended: list[ContainerLog] = field(default_factory=list)
    """What starts before the one that is being read showed, with ages as of `ended_s`."""
    ended_s: float = 0.0
    gone_s: float | None = None
    """When its pod left (monotonic); None while it is there."""


class LogWatch:
    """A thread of the agent; `follow` and `of_pods` may be called from any other."""

    def __init__(
        self,
        folder: Path,
        rules: Iterable[LogRule],
        catalog: Catalog,
        on_error: Callable[[str], None],
        *,
        longest_phase_s: float = LONGEST_PHASE_S,
    ) -> None:
        """`folder`: /var/log/pods of the node; `on_error`: why a log is not read, once for each.

        `longest_phase_s`: what a program announces for longer is refused.
        """
        self._longest_phase_s = longest_phase_s
        self._folder, self._catalog, self._on_error = folder, catalog, on_error
        self._rules = tuple(each for each in rules if each.source is Source.CONTAINER)
        self._lock = threading.Lock()
        self._wanted: Mapping[tuple[str, str], Pod] = {}
        self._job_rules: Mapping[str, Sequence[JobRule]] = {}
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._refused: set[tuple[str, str]] = set()
        self._shown: dict[str, tuple[ContainerLog, ...]] = {}
        self._shown_s = 0.0
        self._stopping = threading.Event()
        self.turn_s = time.monotonic()
        """When it last began a turn (monotonic)."""
        self.read_bytes = 0
        self.skipped_bytes = 0

    def follow(
        self, pods: Iterable[Pod], job_rules: Mapping[str, Sequence[JobRule]] | None = None
    ) -> None:
        """These pods are watched now, and no others; `job_rules`: what is expected of their logs, by the pods' uids."""
        wanted = {
            (pod.uid, container.name): pod
            for pod in pods
            for container in with_ranks(pod)
            if container.id
        }
        with self._lock:
            self._wanted = dict(list(wanted.items())[:_MOST_LOGS])
            self._job_rules = dict(job_rules or {})

    def of_pods(self, uids: Iterable[str], now_s: float) -> tuple[ContainerLog, ...]:
        """What the logs of these pods show; ages before `now_s` (unix seconds)."""
        with self._lock:
            found = [each for uid in uids for each in self._shown.get(uid, ())]
            late_s = now_s - self._shown_s
        return tuple(each.later(late_s) for each in found[:_MOST_REPORTED])

    def close(self) -> None:
        """End `run` soon."""
        self._stopping.set()

    def run(self) -> None:
        """Read until `close`."""
        while not self._stopping.is_set():
            self.turn_s = time.monotonic()
            began_s, more = time.thread_time(), False
            try:
                more = self.turn()
            except Exception as error:  # noqa: BLE001 - a thread that ends would have the agent restarted
                self._on_error(f"logs of containers: {error!r}")
            busy_s = time.thread_time() - began_s
            rest_s = busy_s * (1.0 / LOG_CORE_SHARE - 1.0)
            self._stopping.wait(rest_s if more else max(rest_s, LOG_POLL_S))
        for each in self._watched.values():
            each.files.close()

    def turn(self) -> bool:
        """Read a block of each log; True where more is left to be read."""
        self._follow()
        more, changed = False, False
        for key, each in list(self._watched.items()):
            read = self._read(key, each)
            changed |= read > 0
            more |= read >= _BLOCK_BYTES
        if changed or self._shown:
            self._show()
        return more

    def _follow(self) -> None:
        with self._lock:
            wanted, job_rules = self._wanted, self._job_rules
        for (uid, _), known in self._watched.items():
            known.reader.expect(job_rules.get(uid, ()))
        now_s = time.monotonic()
        for key in self._watched.keys() - wanted.keys():
            each = self._watched[key]
            each.gone_s = each.gone_s or now_s
            if now_s - each.gone_s > LOG_LINGER_S:
                each.files.close()
                del self._watched[key]
        self._refused &= wanted.keys()
        for key in wanted.keys() - self._watched.keys() - self._refused:
            pod, container = wanted[key], key[1]
            name = f"{pod.namespace}_{pod.name}_{pod.uid}"
            files = LogFiles(self._folder, name, container, tail_bytes=KEPT_BYTES)
            reader = ContainerLogReader(
                pod.uid,
                container,
                self._rules,
                self._catalog,
                job_rules=job_rules.get(pod.uid, ()),
                longest_phase_s=self._longest_phase_s,
            )
            self._watched[key] = _Watched(pod, files, reader)

    def _read(self, key: tuple[str, str], each: _Watched) -> int:
        """Bytes that were read of one log."""
        try:
            chunk = each.files.read(_BLOCK_BYTES)
        except FileNotFoundError:
            return 0  # its container has not been started yet, or the pod is gone
        except (UnsafeLogError, OSError) as error:
            each.files.close()
            del self._watched[key]
            self._refused.add(key)
            pod = each.pod
            self._on_error(f"log of {pod.namespace}/{pod.name} {key[1]} is not read: {error}")
            return 0
        if chunk is None:
            return 0
        now_s = time.time()
        if chunk.start != each.reader.start and (last := each.reader.summary(now_s)) is not None:
            each.ended, each.ended_s = [last], now_s
        each.reader.feed(chunk, now_s)
        self.read_bytes += len(chunk.data)
        self.skipped_bytes += chunk.skipped_bytes
        return len(chunk.data)

    def _show(self) -> None:
        now_s = time.time()
        shown: dict[str, list[ContainerLog]] = {}
        for (uid, _), each in self._watched.items():
            kept = [one.later(now_s - each.ended_s) for one in each.ended]
            if (current := each.reader.summary(now_s)) is not None:
                kept.append(current)
            if kept:
                shown.setdefault(uid, []).extend(kept[-_MOST_KEPT:])
        with self._lock:
            self._shown = {uid: tuple(logs) for uid, logs in shown.items()}
            self._shown_s = now_s
