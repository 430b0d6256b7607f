"""The processes of some pods of this node, found by their control groups; and a check that the client still exists."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from kcover_ebpf.api.container_cgroup import containers_of_process
from kcover_ebpf.host import procfs
from kcover_ebpf.host.bounded import read_bytes
from kcover_ebpf.tunables.trace import BEAT_MISSED_S

_PAUSE = "pause"


class PodTarget:
    """The processes of pods, as the watched job."""

    def __init__(self, name: str, pods: dict[str, str], containers: Collection[str]) -> None:
        """`pods`: uid -> name; `containers`: ids, empty for every container but the pods' pause."""
        self.name = name
        self._pods = {_plain(uid): pod for uid, pod in pods.items()}
        self.uids = {pod: uid for uid, pod in pods.items()}
        """Name of a pod -> its uid."""
        self._containers = frozenset(containers)
        self._seen: dict[int, str | None] = {}

    @property
    def pod_names(self) -> dict[int, str]:
        """Process -> its pod, for all processes ever listed."""
        return {pid: pod for pid, pod in self._seen.items() if pod is not None}

    def pids(self) -> set[int]:
        """Pids of the members now."""
        listed = set[int](procfs.every_process())
        self._seen = {pid: pod for pid, pod in self._seen.items() if pid in listed}
        for pid in listed - self._seen.keys():
            self._seen[pid] = self._pod_of(pid)
        return set(self.pod_names)

    def gone(self) -> bool:
        """True when no member is left."""
        return not any(Path("/proc", str(pid)).exists() for pid in self.pod_names)

    def _pod_of(self, pid: int) -> str | None:
        try:
            text = read_bytes(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
        except OSError:
            return None
        for path in containers_of_process(text):
            pod = self._pods.get(_plain(path.pod_uid))
            if pod is None:
                continue
            if self._containers:
                return pod if path.container_id in self._containers else None
            return None if procfs.comm(pid) == _PAUSE else pod
        return None


def _plain(uid: str) -> str:
    return uid.replace("-", "").replace("_", "").lower()


def end_with_asker(end: Callable[[], None]) -> None:
    """Call `end` once standard input ends, or is silent for longer than any living client is."""

    def watch() -> None:
        descriptor = sys.stdin.fileno()
        while True:
            ready, _, _ = select.select([descriptor], [], [], BEAT_MISSED_S)
            if not ready or not os.read(descriptor, 4096):
                break
        end()

    threading.Thread(target=watch, daemon=True, name="kcover-asker").start()
