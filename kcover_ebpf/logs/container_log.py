"""Summarises the log of one container, start by start: counts of rule matches and tracebacks, never a line of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.log_report import ContainerLog, LogFinding, LoggedTraceback
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.catalog import Catalog
from kcover_ebpf.logs import lines, printed_steps
from kcover_ebpf.logs.job_rule_watch import JobRuleWatch
from kcover_ebpf.logs.lines import LogLine, Source
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.logs.normal import NormalLines
from kcover_ebpf.logs.printed_steps import PrintedStep
from kcover_ebpf.logs.progress_watch import ProgressWatch
from kcover_ebpf.logs.reader import LogReader, Match
from kcover_ebpf.logs.rule_set import RuleSet
from kcover_ebpf.logs.rules import LogDomain, LogRule, Severity
from kcover_ebpf.logs.tracebacks import FoundTraceback, TracebackFinder
from kcover_ebpf.tunables.host import CRASH_S, FINDING_RECENT_S, LATE_LINE_S, LONGEST_PHASE_S

_MOST_FINDINGS = 8
_MOST_TRACEBACKS = 4
_SEVERITIES = (Severity.FATAL, Severity.ERROR, Severity.WARNING, Severity.INFO)
_FALLBACK = "python_error"
"""The rule for a traceback whose last line matches no rule, such as a bare AssertionError."""


@dataclass(slots=True)
class _Count:
    match: Match
    first_s: float
    last_s: float
    count: int = 1


@dataclass(slots=True)
class _Seen:
    traceback: LoggedTraceback
    stream: str
    process: str
    """The process that printed it; see `FoundTraceback.process`."""
    time_s: float
    settled: bool = False
    """True once everything was read that may have been printed before it."""


class ContainerLogReader:
    """Takes the chunks of one container's log. What it keeps is bounded by the number of rules."""

    def __init__(
        self,
        pod_uid: str,
        container: str,
        rules: Sequence[LogRule],
        *,
        job_rules: Sequence[JobRule] = (),
        longest_phase_s: float = LONGEST_PHASE_S,
    ) -> None:
        """`rules`: rules for containers, first match first.

        `job_rules`: rules of the job's policy. `longest_phase_s`: a longer phase announced by the program is
        refused.
        """
        self._job_rules = tuple(job_rules)
        self._progress = ProgressWatch(longest_phase_s)
        self._pod_uid, self._container = pod_uid, container
        self._rules = rules
        self._rule_set = RuleSet(rules)
        self._generic = frozenset(rule.name for rule in rules if rule.generic)
        self._start = -1
        self._begin()

    def _begin(self) -> None:
        self._lines, self._tracebacks = NormalLines(), TracebackFinder()
        # no Xid is known: a line that reads as the kernel's (the rest of a cut one) was written by the program
        self._reader = LogReader(self._rules, Catalog({}), source=Source.CONTAINER)
        self._counts: dict[tuple[str, Severity], _Count] = {}
        self._seen: list[_Seen] = []
        self._skipped_bytes = 0
        self._first_s: float | None = None
        self._watch = JobRuleWatch(self._job_rules)

    @property
    def start(self) -> int:
        """Restart count of the container start that is being read; -1 before the first chunk."""
        return self._start

    def feed(self, chunk: Chunk, now_s: float) -> None:
        """Read a chunk; `now_s` (unix seconds) is the time of lines that have none."""
        if chunk.start != self._start:
            self._start = chunk.start
            self._begin()
        if chunk.skipped_bytes:
            self._skipped_bytes += chunk.skipped_bytes
            self._lines.skip()
        whole = self._lines.feed(chunk.data)
        if chunk.is_first:
            self._first_s = _first_time(chunk.data)
            self._watch.begin(now_s if self._first_s is None else self._first_s)
            self._progress.begin()
        self._watch.feed(whole, now_s)
        self._progress.feed(whole, now_s)
        for match in self._reader.read(whole):
            self._count(match, _seconds(match.time, now_s))
        for found in self._tracebacks.feed(whole):
            self._note(found, _seconds(found.time, now_s))
        if unsettled := [seen for seen in self._seen if not seen.settled]:
            _add_late_steps(unsettled, whole)

    def _count(self, match: Match, time_s: float) -> None:
        key = match.rule, match.severity
        known_count = self._counts.get(key)
        if known_count is None:
            # only the match is kept, not the line
            self._counts[key] = _Count(replace(match, line=""), time_s, time_s)
        else:
            known_count.count += 1
            known_count.last_s = max(known_count.last_s, time_s)

    def _note(self, found: FoundTraceback, time_s: float) -> None:
        logged = self._logged(found, time_s)
        self._seen = [seen for seen in self._seen if time_s - seen.time_s <= CRASH_S]
        # if several ranks write to one log, a rank that lost a peer is a victim, however early its
        # line is
        of_others = [seen for seen in self._seen if _is_of_another_rank(seen.traceback, logged)]
        if logged.follows and any(not seen.traceback.follows for seen in of_others):
            return
        if not logged.follows:
            victims = [seen for seen in of_others if seen.traceback.follows]
            self._seen = [seen for seen in self._seen if seen not in victims]
        known = {(seen.traceback.fingerprint, seen.traceback.step) for seen in self._seen}
        if (logged.fingerprint, logged.step) not in known and len(self._seen) < _MOST_TRACEBACKS:
            self._seen.append(_Seen(logged, found.stream, found.process, time_s))

    def _logged(self, found: FoundTraceback, time_s: float) -> LoggedTraceback:
        line = LogLine(Source.CONTAINER, found.error, written=found.error)
        rule = self._rule_set.first(line, Source.CONTAINER)
        return LoggedTraceback(
            fingerprint=found.fingerprint,
            rule=rule.name if rule is not None else _FALLBACK,
            domain=(rule.domain if rule is not None else LogDomain.PROGRAM).value,
            age_s=0.0,
            place=found.place,
            step=found.printed.step,
            epoch=found.printed.epoch,
            after_s=None if self._first_s is None else round(time_s - self._first_s, 1),
            secondary=found.secondary,
            generic=rule is None or rule.generic,
            follows=rule is not None and rule.follows,
            rank=found.rank,
        )

    def summary(self, now_s: float) -> ContainerLog | None:
        """The results for this start so far, as ages before `now_s` (unix seconds); None if there are none."""
        recent = [
            count for count in self._counts.values() if now_s - count.last_s <= FINDING_RECENT_S
        ]
        progress = self._progress.progress(now_s)
        phase = self._progress.phase(now_s)
        readings = self._watch.readings(now_s) if self._start >= 0 else ()
        if not (recent or self._seen or readings or progress or phase):
            return None
        counts = sorted(
            recent,
            key=lambda count: (
                _SEVERITIES.index(count.match.severity),
                count.match.rule in self._generic,
                count.first_s,
            ),
        )
        return ContainerLog(
            pod_uid=self._pod_uid,
            container=self._container,
            start=self._start,
            findings=tuple(self._finding(count, now_s) for count in counts[:_MOST_FINDINGS]),
            tracebacks=tuple(
                replace(seen.traceback, age_s=_age(seen.time_s, now_s)) for seen in self._seen
            ),
            skipped_bytes=self._skipped_bytes,
            rules=readings,
            progress=progress,
            phase=phase,
        )

    def forgive(self, seconds: float, now_s: float) -> None:
        """Let this much of the time before `now_s` (unix seconds) be no silence of the container.

        The log was not read meanwhile, and the container may have been suspended as well; or the clock was set.
        """
        self._watch.forgive(seconds, now_s)
        self._progress.forgive(seconds, now_s)

    def expect(self, job_rules: Sequence[JobRule]) -> None:
        """Set the rules of the job's policy; results of removed rules are dropped."""
        if tuple(job_rules) == self._job_rules:
            return
        self._job_rules = tuple(job_rules)
        self._watch = JobRuleWatch(self._job_rules)

    def _finding(self, count: _Count, now_s: float) -> LogFinding:
        match = count.match
        return LogFinding(
            rule=match.rule[:64],
            domain=match.domain.value,
            severity=match.severity.value,
            count=count.count,
            age_s=_age(count.last_s, now_s),
            meaning=match.meaning[:256],
            advice=match.advice[:256],
            generic=match.rule in self._generic,
            follows=match.follows,
            first_age_s=_age(count.first_s, now_s),
        )


def _add_late_steps(tracebacks: Sequence[_Seen], whole: bytes) -> None:
    """Add to ended tracebacks the steps that were printed before them and written after them."""
    for traceback in tracebacks:
        late = printed_steps.written_late(
            whole, traceback.stream, traceback.time_s, traceback.process
        )
        both = PrintedStep(traceback.traceback.step, traceback.traceback.epoch).then(late)
        traceback.traceback = replace(traceback.traceback, step=both.step, epoch=both.epoch)
    end_s = _first_time(whole[whole.rfind(b"\n", 0, -1) + 1 :])
    for traceback in tracebacks:
        traceback.settled = end_s is not None and end_s - traceback.time_s > LATE_LINE_S


def _is_of_another_rank(traceback: LoggedTraceback, logged: LoggedTraceback) -> bool:
    return None not in (traceback.rank, logged.rank) and traceback.rank != logged.rank


def _age(time_s: float, now_s: float) -> float:
    return max(0.0, round(now_s - time_s, 3))


def _first_time(data: bytes) -> float | None:
    line = lines.parse(data.partition(b"\n")[0].decode("utf-8", "replace"))
    return None if line is None else line.time_s


def _seconds(text: str, now_s: float) -> float:
    found = lines.unix_s(text)
    return now_s if found is None else found
