"""Reads the logs of several containers in turn, one block of each, so that one endless log does not delay the others.

It runs in a separate process because tenants write the logs. Requests and answers are small dataclasses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from pathlib import Path

from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import KEPT_BYTES, LogFiles, UnsafeLogError
from kcover_ebpf.logs.rules import LogRule
from kcover_ebpf.logs.wanted_logs import LogTurn, RefusedLog, WantedLog
from kcover_ebpf.tunables.host import (
    LOG_LINGER_S,
    LOG_TURN_BUSY_S,
    LOG_TURN_UNREAD_S,
    LONGEST_PHASE_S,
)

_BLOCK_BYTES = 128 << 10
"""Bytes per turn of a log: 0.15 s of work if every line matches a rule, 1 ms for a quiet log."""
_MOST_KEPT = 2
"""Starts of one container with kept results: the running one, and the one that crashed."""


@dataclass(slots=True)
class _Followed:
    wanted: WantedLog
    files: LogFiles
    reader: ContainerLogReader
    ended: list[ContainerLog] = field(default_factory=list)
    """Results of earlier starts, with ages as of `ended_s`."""
    ended_s: float = 0.0
    gone_s: float | None = None
    """When its pod disappeared (monotonic); None while it exists."""


class LogTurns:
    """Follows the logs of a node's watched containers; used by one thread."""

    def __init__(
        self,
        folder: Path,
        rules: Iterable[LogRule],
        *,
        longest_phase_s: float = LONGEST_PHASE_S,
    ) -> None:
        """`folder`: /var/log/pods of the node.

        `longest_phase_s`: a longer phase announced by a program is refused.
        """
        self._longest_phase_s = longest_phase_s
        self._folder = folder
        self._rules = tuple(rule for rule in rules if rule.source is Source.CONTAINER)
        self._wanted: dict[str, WantedLog] = {}
        self._followed: dict[str, _Followed] = {}
        self._refused: set[str] = set()
        self._next = 0
        self._last_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        """Unix seconds and boottime at the end of the last turn."""

    def close(self) -> None:
        """Close the files of all logs; no more turns are possible."""
        for followed in self._followed.values():
            followed.files.close()

    def turn(
        self, wanted: Sequence[WantedLog] | None, note: Callable[[str], None] = lambda _: None
    ) -> LogTurn:
        """Read a block of each log.

        `wanted`: read exactly these from now on; None: as before. `note`: called with the key of each log before it
        is read.
        """
        if wanted is not None:
            self._wanted = {wanted_log.key: wanted_log for wanted_log in wanted}
        began_s, read, skipped, more = time.thread_time(), 0, 0, False
        self._follow()
        refused: list[RefusedLog] = []
        keys = list(self._followed)
        start = self._next % len(keys) if keys else 0
        self._next = 0
        for index, key in enumerate((*keys[start:], *keys[:start])):
            if time.thread_time() - began_s > LOG_TURN_BUSY_S:
                self._next, more = start + index, True
                break
            read_bytes, skipped_bytes = self._read(key, note, refused)
            read, skipped = read + read_bytes, skipped + skipped_bytes
            more |= read_bytes >= _BLOCK_BYTES
        now_s = self._now_s()
        logs = tuple(one for followed in self._followed.values() for one in _shown(followed, now_s))
        busy_s = time.thread_time() - began_s
        return LogTurn(more, logs, tuple(refused), now_s, busy_s, read, skipped)

    def _now_s(self) -> float:
        """Unix seconds; time since the last turn that was not observed, or a step of the clock, is no silence."""
        last_s, last_boottime_s = self._last_s
        now_s, boottime_s = self._last_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        unread_s = now_s - last_s - min(boottime_s - last_boottime_s, LOG_TURN_UNREAD_S)
        # where the clock was set back, lines that seem to come later are from before
        for followed in self._followed.values():
            followed.reader.forgive(max(0.0, unread_s), now_s)
        return now_s

    def _follow(self) -> None:
        now_s = time.monotonic()
        for key in self._followed.keys() - self._wanted.keys():
            followed = self._followed[key]
            followed.gone_s = followed.gone_s or now_s
            if now_s - followed.gone_s > LOG_LINGER_S:
                followed.files.close()
                del self._followed[key]
        self._refused &= self._wanted.keys()
        for key, wanted in self._wanted.items():
            if (known_followed := self._followed.get(key)) is not None:
                known_followed.reader.expect(wanted.job_rules)
                continue
            if key in self._refused:
                continue
            name = f"{wanted.namespace}_{wanted.pod}_{wanted.pod_uid}"
            files = LogFiles(self._folder, name, wanted.container, tail_bytes=KEPT_BYTES)
            reader = ContainerLogReader(
                wanted.pod_uid,
                wanted.container,
                self._rules,
                job_rules=wanted.job_rules,
                longest_phase_s=self._longest_phase_s,
            )
            self._followed[key] = _Followed(wanted, files, reader)

    def _read(
        self, key: str, note: Callable[[str], None], refused: list[RefusedLog]
    ) -> tuple[int, int]:
        """(bytes read, bytes skipped) of one log."""
        followed = self._followed[key]
        try:
            chunk = followed.files.read(_BLOCK_BYTES)
        except FileNotFoundError:
            return 0, 0  # the container has not been started yet, or the pod no longer exists
        except (UnsafeLogError, OSError) as error:
            followed.files.close()
            del self._followed[key]
            self._refused.add(key)
            refused.append(RefusedLog(key, str(error)[:200]))
            return 0, 0
        if chunk is None:
            return 0, 0
        note(key)
        now_s = time.time()
        if (
            chunk.start != followed.reader.start
            and (last := followed.reader.summary(now_s)) is not None
        ):
            followed.ended, followed.ended_s = [last], now_s
        followed.reader.feed(chunk, now_s)
        return len(chunk.data), chunk.skipped_bytes


def _shown(followed: _Followed, now_s: float) -> list[ContainerLog]:
    kept = [container_log.later(now_s - followed.ended_s) for container_log in followed.ended]
    if (current := followed.reader.summary(now_s)) is not None:
        kept.append(current)
    return kept[-_MOST_KEPT:]
