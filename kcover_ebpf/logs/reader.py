"""Finds the lines of a log that match a rule, at the speed of one RE2 scan over each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.devices.catalog import Action, Catalog, Entry, judge
from kcover_ebpf.devices.catalog import Domain as XidDomain
from kcover_ebpf.devices.xid import kmsg_parser
from kcover_ebpf.logs import levels, lines, scanner
from kcover_ebpf.logs.levels import LogLevel
from kcover_ebpf.logs.lines import LogLine, Source
from kcover_ebpf.logs.normal import NormalLines
from kcover_ebpf.logs.rule_set import RuleSet
from kcover_ebpf.logs.rules import (
    Concerns,
    LogDomain,
    LogRule,
    Severity,
    compiled,
    scanner_for,
    test_for,
)

_LONGEST_LINE = 64 << 10
"""Most bytes of a line that are read. The CRI splits lines at 16 KiB."""
_MOST_CONTINUED = 64
"""Most lines of one kernel record; a stack has as many."""
_MOST_KNOWN, _MOST_KNOWN_CHARS = 16, 512
"""Most remembered lines of a storm, and most characters of each: there is one reader per container
of a node."""
_HEAD_BYTES = 200
"""Longer than any prefix of a message."""

_XID, _SXID = compiled(kmsg_parser.XID_IN_LOG), compiled(kmsg_parser.SXID_IN_LOG)
_XID_DOMAIN = {
    XidDomain.APPLICATION: LogDomain.PROGRAM,
    XidDomain.DRIVER: LogDomain.DRIVER,
    XidDomain.HARDWARE: LogDomain.HARDWARE,
    XidDomain.FABRIC: LogDomain.HARDWARE,
}


@dataclass(frozen=True, slots=True)
class Match:
    """One line that matches a rule, or is an Xid."""

    number: int
    """Line number in the log, from 1."""
    line: str
    """The message without the log's prefix."""
    rule: str
    domain: LogDomain
    severity: Severity
    concerns: Concerns
    lasting: bool
    meaning: str
    advice: str
    check: str = ""
    """The inspection check that shows whether the fault persists; empty if there is none."""
    time: str = ""
    """Time at which a container runtime read the line (RFC 3339); empty in other logs."""
    rank: int | None = None
    """Global rank of the process that wrote it; None if no head states it."""
    follows: bool = False
    """The line reports the consequence of a failure elsewhere, so its process is a victim."""


class LogReader:
    """Takes a log block by block, in order.

    Keeps a bounded amount: the beginnings of a few unfinished lines. Parts of a long line that a container runtime
    has split (16 KiB each) count as lines; a match is found at the last part.
    """

    def __init__(
        self,
        rules: Sequence[LogRule],
        catalog: Catalog,
        *,
        source: Source = Source.UNKNOWN,
    ) -> None:
        """`source`: the source of lines without a prefix; UNKNOWN tries the rules of both."""
        self._rules = RuleSet(rules)
        self._catalog = catalog
        self._bare = source
        self._scan = scanner_for(rules)
        self._test = test_for(rules)
        self._lines = NormalLines()
        self._line_count = 0
        self._known: dict[str, Match | None] = {}
        """Results for a container's recent lines without their times, because storms repeat lines."""

    def feed(self, block: bytes) -> Iterator[Match]:
        """The matches in lines that end in this block."""
        return self.read(self._lines.feed(block))

    def finish(self) -> Iterator[Match]:
        """The matches in the rest of the log: a last line without its line end."""
        return self.read(self._lines.finish())

    def read(self, block: bytes) -> Iterator[Match]:
        """The matches in a block that `NormalLines` produced."""
        start, block = 0, scanner.whole_utf8(block)
        for part_start, part_end in self._candidates(block):
            self._line_count += block.count(b"\n", start, part_start)
            start = part_start
            raw = block[part_start : min(part_end, part_start + _LONGEST_LINE)]
            found_match = self._classify(raw.decode("utf-8", "replace"), block, part_start)
            if found_match is not None:
                yield found_match
        self._line_count += block.count(b"\n", start)

    def _candidates(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Start and end of each part of a line that may match."""
        position = 0
        has_parts = b"\r" in block
        while (match := self._scan.search(block, position)) is not None:
            if match.start() == len(block):  # empty, after the last newline: not a line
                return
            start = block.rfind(b"\n", 0, match.start()) + 1
            end = block.find(b"\n", match.start())
            if has_parts:
                start = max(start, block.rfind(b"\r", start, match.start()) + 1)
                drawn = block.find(b"\r", match.start(), end if end >= 0 else len(block))
                end = drawn if drawn >= 0 else end
            if end < 0:
                end = len(block)
            yield start, end
            position = end + 1
            if not has_parts:
                # matching lines come in storms: a cheap test for the next line avoids a full search
                while (end := block.find(b"\n", position)) >= 0 and self._test.Match(
                    block[position:end]
                ):
                    yield position, end
                    position = end + 1

    def _classify(self, raw: str, block: bytes, start: int) -> Match | None:
        if (head := _continued(raw, block, start)) is not None and head.strip():
            # a continuation of a kernel record has no time; the author of the record wrote it
            first = lines.parse(head)
            if first is None:
                return None
            if first.source is Source.KERNEL:
                text = raw.strip()
                return self._match(LogLine(Source.KERNEL, text, written=text)) if text else None
        time, text = lines.cri_time(raw)
        if not time or len(text) > _MOST_KNOWN_CHARS:
            line = lines.parse(raw)
            return None if line is None else self._match(line)
        if text not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            line = lines.parse(raw)
            self._known[text] = None if line is None else self._match(line)
        match = self._known[text]
        return None if match is None else replace(match, number=self._line_count + 1, time=time)

    def _match(self, line: LogLine) -> Match | None:
        source = self._bare if line.source is Source.UNKNOWN else line.source
        number = self._line_count + 1
        if source is not Source.CONTAINER:
            if kmsg_parser.is_detail(line.written):
                return None
            if (found := self._xid(line.written)) is not None:
                return _of_xid(number, line.written, *found)
        rule = self._rules.first(line, source)
        if rule is None:
            return None
        severity = said_severity(rule, line)
        is_mild = severity is not rule.severity
        return Match(
            number,
            line.text,
            rule.name,
            rule.domain,
            severity,
            # a message that its author calls harmless does not make a node unfit
            Concerns.JOB if is_mild else rule.concerns,
            rule.lasting and not is_mild,
            rule.meaning,
            rule.advice,
            rule.check,
            line.time,
            line.rank,
            rule.follows,
        )

    def _xid(self, text: str) -> tuple[Entry, str] | None:
        """The catalogue's entry for an Xid line, and the text after its number."""
        for pattern in (_XID, _SXID):
            if (match := pattern.search(text)) is not None:
                found = match.groupdict()
                entry = self._catalog.find(int(found["number"] or 0))
                return None if entry is None else (entry, found["rest"] or "")
        return None


def said_severity(rule: LogRule, line: LogLine) -> Severity:
    """The severity of the rule; lower if the line's own level is lower or its program continues."""
    if rule.source is Source.KERNEL:
        return rule.severity
    if not levels.reports(line.text):
        return Severity.INFO
    continues, may_deny = levels.mild_words(line.text)
    if may_deny and _is_denied(rule, line.text):
        return Severity.INFO
    if rule.severity not in (Severity.FATAL, Severity.ERROR):
        return rule.severity
    if line.level is not None and line.level <= LogLevel.INFO:
        return Severity.INFO
    return Severity.WARNING if continues or line.level is LogLevel.WARNING else rule.severity


def _is_denied(rule: LogRule, text: str) -> bool:
    found = rule.regex.search(text)
    return found is not None and levels.denied(text, found.start())


def _continued(raw: str, block: bytes, start: int) -> str | None:
    """The beginning of the record that a split or indented line continues; None for other lines."""
    end = start
    if block[start - 1 : start] == b"\r":
        begin = block.rfind(b"\n", 0, start) + 1
        return block[begin : begin + _HEAD_BYTES].partition(b"\r")[0].decode("utf-8", "replace")
    if raw[:1] not in (" ", "\t"):
        return None
    for _ in range(_MOST_CONTINUED):
        if end <= 0:
            return None
        begin = block.rfind(b"\n", 0, end - 1) + 1
        if block[begin : begin + 1] not in (b" ", b"\t"):
            return block[begin : end - 1][:_HEAD_BYTES].decode("utf-8", "replace")
        end = begin
    return None


def _of_xid(number: int, text: str, entry: Entry, rest: str) -> Match:
    verdict = judge(entry, kmsg_parser.message_parts(rest)[2])
    severity = Severity.WARNING
    if verdict.device_unfit:
        severity = Severity.FATAL
    elif verdict.ends_job:
        severity = Severity.ERROR
    elif verdict.action is Action.NONE and entry.action is not Action.NONE:
        severity = Severity.INFO  # by its own words, nothing needs to be done
    advice = entry.advice if verdict.action is entry.action else verdict.reason
    return Match(
        number,
        text,
        entry.name.replace(" ", "_").lower(),
        _XID_DOMAIN[entry.domain],
        severity,
        Concerns.NODE if verdict.device_unfit else Concerns.JOB,
        verdict.device_unfit,
        entry.meaning,
        f"{verdict.action.value}: {advice}".removesuffix(": "),
    )
