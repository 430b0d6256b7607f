"""Has the logs of the watched pods read, within a share of one core, and keeps the findings.

A confined reader reads them (`reader.logs`), because a tenant writes them. A log that crashed the reader twice is
no longer read.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from kcover_ebpf.api.job_kinds import with_ranks
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.host import over_bounds
from kcover_ebpf.logs.wanted_logs import LogTurn, RuleShares, WantedLog
from kcover_ebpf.tunables.agent import LOG_CALM_POLL_S, LOG_CORE_SHARE, LOG_POLL_S
from kcover_ebpf.tunables.host import LOG_TURN_UNREAD_S

_MOST_LOGS = 256
"""Containers of one node: twice the number of pods that a kubelet runs by default."""
_MOST_REPORTED = 64
_ENDS = 2
"""Crashes of the reader over one log. One may be chance: the node was short of memory, or an operator killed it."""


class LogSource(Protocol):
    """A process that reads the logs it was asked to follow."""

    @property
    def starts(self) -> int:
        """Number of starts of the process. A change means that it has forgotten what it was asked to follow."""
        ...

    def turn(self, wanted: Sequence[WantedLog] | None) -> LogTurn:
        """Read a block of each log; None: the same logs as before. Raises `ReaderError`."""
        ...


class LogWatch:
    """A thread of the agent; `follow` and `of_pods` may be called from any other."""

    def __init__(self, source: LogSource, on_error: Callable[[str], None]) -> None:
        """`on_error`: called with the reason why a log is not read, once per log."""
        self._source, self._on_error = source, on_error
        self._lock = threading.Lock()
        self._wanted: dict[str, WantedLog] = {}
        self._without_rules: frozenset[str] = frozenset()
        """Uids of pods for which too many job rules are already in use, so that theirs are ignored."""
        self._sent: tuple[int, frozenset[WantedLog]] | None = None
        """What the source was last asked to follow, with its number of starts at that time."""
        self._ended_over: Counter[str] = Counter()
        self._shown: dict[str, list[ContainerLog]] = {}
        self._shown_s = 0.0
        self._stopping = threading.Event()
        self._reported = threading.Event()
        """True while reports contain what logs show."""
        self.turn_s = time.monotonic()
        """Monotonic time at which the last turn began."""
        self.read_bytes = 0
        self.skipped_bytes = 0
        self._skipped_pods: set[str] = set()

    def follow(
        self,
        pods: Iterable[Pod],
        job_rules: Mapping[str, Sequence[JobRule]] | None = None,
        *,
        is_reported: bool = True,
    ) -> None:
        """Follow the logs of these pods and no others; `job_rules`: rules for their logs, by uid.

        `is_reported`: reports now contain what the logs show, so read them more often, and at once.
        """
        if is_reported:
            self._reported.set()
        else:
            self._reported.clear()
        expected, shares = job_rules or {}, RuleShares()
        wanted: list[tuple[int, WantedLog]] = []
        without: dict[str, str] = {}
        for pod in pods:
            rules = tuple(expected.get(pod.uid, ()))
            if not shares.take(pod.namespace, rules):
                rules, without[pod.uid] = (), f"{pod.namespace}/{pod.name}"
            wanted += enumerate(
                WantedLog(pod.namespace, pod.name, pod.uid, container.name, rules)
                for container in with_ranks(pod)
                if container.id
            )
        # one of each pod before a second one of any: a pod with many containers leaves room for the others
        wanted.sort(key=lambda entry: entry[0])
        with self._lock:
            self._wanted = {wanted_log.key: wanted_log for _, wanted_log in wanted[:_MOST_LOGS]}
            known, self._without_rules = self._without_rules, frozenset(without)
        for uid in without.keys() - known:
            self._on_error(f"job rules of {without[uid]} are not read: {shares.words}")

    def of_pods(self, uids: Iterable[str], now_s: float) -> tuple[ContainerLog, ...]:
        """Findings in the logs of these pods; their ages are relative to `now_s` (unix seconds)."""
        with self._lock:
            found = [container_log for uid in uids for container_log in self._shown.get(uid, ())]
            # what was not read is no silence
            late_s = min(now_s - self._shown_s, LOG_TURN_UNREAD_S)
        return tuple(container_log.later(late_s) for container_log in found[:_MOST_REPORTED])

    def close(self) -> None:
        """Ask `run` to return; does not wait for it."""
        self._stopping.set()
        self._reported.set()

    def run(self) -> None:
        """Read the followed logs until `close` is called."""
        while not self._stopping.is_set():
            self.turn_s = time.monotonic()
            turn = LogTurn()
            try:
                turn = self.turn()
            except Exception as error:  # noqa: BLE001 - a thread that ends would have the agent restarted
                self._on_error(f"logs of containers: {error!r}")
            self._rest(turn)

    def _rest(self, turn: LogTurn) -> None:
        rest_s = turn.busy_s * (1.0 / LOG_CORE_SHARE - 1.0)
        self._stopping.wait(rest_s if turn.more else max(rest_s, LOG_POLL_S))
        if not turn.more:
            self._reported.wait(max(0.0, LOG_CALM_POLL_S - max(rest_s, LOG_POLL_S)))

    def turn(self) -> LogTurn:
        """Read one block of each followed log."""
        with self._lock:
            wanted = {
                key: wanted_log
                for key, wanted_log in self._wanted.items()
                if self._ended_over[key] < _ENDS
            }
        asked = (self._source.starts, frozenset(wanted.values()))
        try:
            turn = self._source.turn(None if asked == self._sent else tuple(wanted.values()))
        except ReaderError as error:
            self._sent = None
            self._note_end(error)
            return LogTurn()
        self._sent = asked
        for refused in turn.refused:
            self._say(refused.key, refused.text)
        self.read_bytes += turn.read_bytes
        self.skipped_bytes += turn.skipped_bytes
        shown: dict[str, list[ContainerLog]] = {}
        if turn.skipped_bytes:
            self._note_skipped(turn.logs)
        for log in turn.logs:
            shown.setdefault(log.pod_uid, []).append(log)
        with self._lock:
            self._shown, self._shown_s = shown, turn.time_s
        return turn

    def _note_skipped(self, logs: Iterable[ContainerLog]) -> None:
        before = {
            (uid, log.container): log.skipped_bytes
            for uid, shown in self._shown.items()
            for log in shown
        }
        over = {
            log.pod_uid
            for log in logs
            if log.skipped_bytes > before.get((log.pod_uid, log.container), 0)
        }
        for _ in over:
            over_bounds.count("log")
        with self._lock:
            self._skipped_pods |= over

    def taken_skipped(self) -> frozenset[str]:
        """Uids of pods with a log of which a part was skipped since the last call."""
        with self._lock:
            found, self._skipped_pods = frozenset(self._skipped_pods), set()
        return found

    def _note_end(self, error: ReaderError) -> None:
        self._ended_over[error.at] += 1
        if error.at and self._ended_over[error.at] == _ENDS:
            self._say(error.at, f"{error}, for the second time")
        elif not error.at:
            self._on_error(f"logs of containers: {error}")

    def _say(self, key: str, why: str) -> None:
        with self._lock:
            wanted = self._wanted.get(key)
        name = f"{wanted.namespace}/{wanted.pod} {wanted.container}" if wanted else key
        self._on_error(f"log of {name} is not read: {why}")
