"""Finds the lines of a log that a rule knows, at the speed of one RE2 scan over each block."""

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
"""Bytes; what a line has beyond them is not read. The CRI cuts at 16 KiB."""
_MOST_CONTINUED = 64
"""Lines of one record of the kernel: a stack has as many."""
_MOST_KNOWN, _MOST_KNOWN_CHARS = 16, 512
"""Lines of a storm that are remembered, and the length of each: there is a reader for each container of a node."""
_HEAD_BYTES = 200
"""Longer than whatever a log puts in front of a message."""

_XID, _SXID = compiled(kmsg_parser.XID_IN_LOG), compiled(kmsg_parser.SXID_IN_LOG)
_XID_DOMAIN = {
    XidDomain.APPLICATION: LogDomain.PROGRAM,
    XidDomain.DRIVER: LogDomain.DRIVER,
    XidDomain.HARDWARE: LogDomain.HARDWARE,
    XidDomain.FABRIC: LogDomain.HARDWARE,
}


@dataclass(frozen=True, slots=True)
class Match:
    """One line that a rule knows."""

    number: int
    """The line's number in the log, from 1."""
    line: str
    """The message, without what the log put in front."""
    rule: str
    domain: LogDomain
    severity: Severity
    concerns: Concerns
    lasting: bool
    meaning: str
    advice: str
    check: str = ""
    """The check of an inspection that shows whether it is still so; empty: none does."""
    time: str = ""
    """When a container runtime read the line (RFC 3339); empty in other logs."""
    rank: int | None = None
    """Of the process that wrote it, where what a launcher put in front says so."""
    follows: bool = False
    """It says what followed from a failure elsewhere: whoever prints it is a victim."""


class LogReader:
    """Takes a log block by block, in order. What it keeps is bounded: the beginnings of a few unfinished lines.

    The pieces that a container runtime makes of a long line (16 KiB each) count as lines; what they say is found at the
    last of them.
    """

    def __init__(
        self,
        rules: Sequence[LogRule],
        catalog: Catalog,
        *,
        source: Source = Source.UNKNOWN,
    ) -> None:
        """`source`: who wrote lines that have nothing in front of them; UNKNOWN tries both."""
        self._rules = RuleSet(rules)
        self._catalog = catalog
        self._bare = source
        self._scan = scanner_for(rules)
        self._test = test_for(rules)
        self._lines = NormalLines()
        self._line_count = 0
        self._known: dict[str, Match | None] = {}
        """What was made of the last lines of a container, without their times: a storm repeats them."""

    def feed(self, block: bytes) -> Iterator[Match]:
        """The known lines that end in this block."""
        return self.read(self._lines.feed(block))

    def finish(self) -> Iterator[Match]:
        """What is left when the log ends: a last line without its newline."""
        return self.read(self._lines.finish())

    def read(self, block: bytes) -> Iterator[Match]:
        """The known lines of a block that `NormalLines` made."""
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
        """Start and end of the parts of lines that may match, each once."""
        position = 0
        has_parts = b"\r" in block
        while (match := self._scan.search(block, position)) is not None:
            if match.start() == len(block):  # empty, behind the last newline: there is no line
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
                # known lines come in storms: whether the next is one is found out without where it matches
                while (end := block.find(b"\n", position)) >= 0 and self._test.Match(
                    block[position:end]
                ):
                    yield position, end
                    position = end + 1

    def _classify(self, raw: str, block: bytes, start: int) -> Match | None:
        if (head := _continued(raw, block, start)) is not None and head.strip():
            # what a record of the kernel has behind its first line has no time; whoever wrote that wrote this
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
            # what its writer calls harmless takes no node out
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
        """The catalogue's entry, and what follows its number."""
        for pattern in (_XID, _SXID):
            if (match := pattern.search(text)) is not None:
                found = match.groupdict()
                entry = self._catalog.find(int(found["number"] or 0))
                return None if entry is None else (entry, found["rest"] or "")
        return None


def said_severity(rule: LogRule, line: LogLine) -> Severity:
    """The rule's severity, or less where the line's own level is less or its program continues."""
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
    """The beginning of the record that a part of a line, or an indented line, continues; None for any other."""
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
        severity = Severity.INFO  # by its own words there is nothing to do
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
