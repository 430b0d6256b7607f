"""The files with a job's output, followed while it runs: its steps, hints, and lines of its policy's rules.

What was there before the job was started belongs to an earlier one and is not read. A file that is truncated or
replaced is read from its beginning.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.api.job_rules import JobRule, RuleAction
from kcover_ebpf.facts.logs import BrokenLogRule, LogSeen
from kcover_ebpf.gang import job_rules
from kcover_ebpf.gang.job_rules import LoggedProgress, SeenLog
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import NS
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.log_files import KEPT_BYTES, MOST_BEHIND_BYTES, Chunk
from kcover_ebpf.logs.observed_clock import ObservedClock

_READ_BYTES = 1 << 20
"""Bytes read from one file in one pass: about 10 ms of work."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _LogFile:
    """One followed file of the job's output."""

    def __init__(self, path: Path, rules: Sequence[JobRule], longest_phase_s: float) -> None:
        self._path = path
        self.reader = ContainerLogReader(
            os.fspath(path), "", (), job_rules=rules, longest_phase_s=longest_phase_s
        )
        self._fd: int | None = None
        self._offset = 0
        self._start = -1
        self._is_first = False

    def begin(self, now_s: float, *, is_first: bool) -> None:
        """Mark the start of a job: later output belongs to it; `is_first`: the job is started now."""
        self._open()
        if self._fd is not None:
            self._offset = os.fstat(self._fd).st_size
        self._start += 1
        self.reader.feed(Chunk(self._start, b"", is_first=is_first), now_s)

    def read(self, now_s: float) -> None:
        """Read what was written since the last call."""
        self._open()
        if self._fd is None:
            return
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            self._offset = 0
        skipped = 0
        if size - self._offset > MOST_BEHIND_BYTES:
            skipped = size - KEPT_BYTES - self._offset
            self._offset += skipped
        data = os.pread(self._fd, _READ_BYTES, self._offset)
        if data:
            self._offset += len(data)
            self.reader.feed(Chunk(self._start, data, skipped), now_s)

    def _open(self) -> None:
        """Open the file that the path names now, once the previous one was read to its end."""
        try:
            named = self._path.stat()
        except OSError:
            return
        if self._fd is not None:
            opened = os.fstat(self._fd)
            is_same = (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)
            if is_same or opened.st_size > self._offset:
                return
        if not stat.S_ISREG(named.st_mode):
            return
        with contextlib.suppress(OSError):
            fresh = os.open(self._path, _FLAGS)
            self.close()
            self._fd, self._offset = fresh, 0

    def close(self) -> None:
        """Close the file; further reads open it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class JobLog:
    """All followed files, as facts about the job. Used by one thread."""

    def __init__(
        self,
        paths: Sequence[Path],
        rules: Sequence[JobRule],
        longest_phase_s: float,
        boottime_ns: Callable[[], int] = procfs.boottime_ns,
    ) -> None:
        """`longest_phase_s`: a longer phase announced by the program is refused. `boottime_ns`: the current one."""
        self._rules, self._clock = tuple(rules), ObservedClock(boottime_ns)
        self._files = [_LogFile(path, rules, longest_phase_s) for path in paths]
        self._now_s = 0.0
        """Time by the clock at which the files were last read."""
        self._begun_s = 0.0
        self._last_seen: LogSeen | None = None
        self._has_printed = False
        """True if any start of the job printed a step."""

    def begin(self, *, is_first: bool = True) -> None:
        """Mark the start of the job; if `is_first` is false, it runs already."""
        self._begun_s, self._last_seen = self._clock.read(), None
        self._now_s = self._begun_s
        for file in self._files:
            file.begin(self._begun_s, is_first=is_first)

    def read(self) -> LogSeen | None:
        """Facts in the log; None if they did not change. Called once a pass."""
        now_s = self._now_s = self._clock.read()
        for file in self._files:
            with contextlib.suppress(OSError):
                file.read(now_s)
        seen, progress = self._seen(now_s), self._progress(now_s)
        self._has_printed |= progress.step is not None
        if (
            self._last_seen is not None
            and replace(self._last_seen, boottime_ns=seen.boottime_ns) == seen
        ):
            return None
        self._last_seen = seen
        return seen

    @property
    def made_progress(self) -> bool | None:
        """True if this start printed a step or an expected line; None if the log cannot show that."""
        if not self._has_printed and not any(rule.is_clock for rule in self._rules):
            return None
        moved_s = self._progress(self._now_s).moved_s
        return moved_s is not None and moved_s >= self._begun_s

    def close(self) -> None:
        """Close all files of the log."""
        for file in self._files:
            file.close()

    def _logs(self, now_s: float) -> list[SeenLog]:
        logs = (file.reader.summary(now_s) for file in self._files)
        return [SeenLog(log, now_s) for log in logs if log is not None]

    def _progress(self, now_s: float) -> LoggedProgress:
        return job_rules.progress_in(self._logs(now_s), self._rules)

    def _seen(self, now_s: float) -> LogSeen:
        progress = self._progress(now_s)
        broken = job_rules.broken_in(self._rules, self._logs(now_s), now_s)
        return LogSeen(
            boottime_ns=self._boottime_ns(now_s),
            moved_ns=None if progress.moved_s is None else self._boottime_ns(progress.moved_s),
            phase_until_ns=None
            if progress.phase_until_s is None
            else self._boottime_ns(progress.phase_until_s),
            broken=tuple(
                BrokenLogRule(
                    rule.text, self._boottime_ns(rule.since_s), rule.action is RuleAction.RESTART
                )
                for rule in broken
            ),
            step=progress.step,
            unsaved_steps=progress.unsaved_steps,
            redone_steps=progress.redone_steps,
        )

    def _boottime_ns(self, time_s: float) -> int:
        # ages have milliseconds: a smaller difference is not a change
        return round(self._clock.boottime_s(time_s) * 10) * (NS // 10)
