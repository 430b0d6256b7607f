"""Finds the lines of a log that a rule knows, at the speed of one RE2 scan over each block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kcover_ebpf.hardware import kmsg_parser
from kcover_ebpf.hardware.catalog import Catalog, Entry, judge
from kcover_ebpf.hardware.catalog import Domain as XidDomain
from kcover_ebpf.logs import lines, scanner
from kcover_ebpf.logs.lines import LogLine, Source
from kcover_ebpf.logs.rules import Concerns, LogDomain, LogRule, Severity, compiled, scanner_for

_LONGEST_LINE = 64 << 10
"""Bytes; what a line has beyond them is not read. The CRI cuts at 16 KiB."""

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


class LogReader:
    """Takes a log block by block, in order. Keeps at most one unfinished line, and of that its beginning.

    The pieces that a container runtime makes of a long line (16 KiB each) count as lines.
    """

    def __init__(
        self,
        rules: Sequence[LogRule],
        catalog: Catalog,
        *,
        bare_lines: Source = Source.UNKNOWN,
    ) -> None:
        """`bare_lines`: who wrote lines that have nothing in front of them; UNKNOWN tries both."""
        self._rules = tuple(rules)
        self._catalog = catalog
        self._bare = bare_lines
        self._scan = scanner_for(self._rules)
        self._rest = b""
        self._in_long_line = False
        self._line_count = 0

    def feed(self, block: bytes) -> Iterator[Match]:
        """The known lines that end in this block."""
        if self._in_long_line:
            _, newline, block = block.partition(b"\n")
            if not newline:
                return
            self._in_long_line = False
            block = newline + block  # ends the line whose beginning is kept
        whole, newline, rest = (self._rest + block).rpartition(b"\n")
        self._rest = rest[:_LONGEST_LINE]
        self._in_long_line = len(rest) > _LONGEST_LINE
        if newline:
            yield from self._read(whole + newline)

    def finish(self) -> Iterator[Match]:
        """What is left when the log ends: a last line without its newline."""
        if self._rest:
            rest, self._rest = self._rest + b"\n", b""
            yield from self._read(rest)

    def _read(self, block: bytes) -> Iterator[Match]:
        start, block = 0, scanner.whole_utf8(block)
        for line_start, line_end in self._candidates(block):
            self._line_count += block.count(b"\n", start, line_start)
            start = line_start
            raw = block[line_start : min(line_end, line_start + _LONGEST_LINE)]
            found = self._classify(raw.decode("utf-8", "replace").rstrip("\r"))
            if found is not None:
                yield found
        self._line_count += block.count(b"\n", start)

    def _candidates(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Start and end of the lines that may match, each once."""
        position = 0
        while (match := self._scan.search(block, position)) is not None:
            if match.start() == len(block):  # empty, behind the last newline: there is no line
                return
            start = block.rfind(b"\n", 0, match.start()) + 1
            end = block.find(b"\n", match.start())
            yield start, end
            position = end + 1

    def _classify(self, raw: str) -> Match | None:
        line = lines.parse(raw)
        return None if line is None else self._match(line)

    def _match(self, line: LogLine) -> Match | None:
        source = self._bare if line.source is Source.UNKNOWN else line.source
        number = self._line_count + 1
        if source is not Source.CONTAINER and (entry := self._xid(line.text)) is not None:
            return _of_xid(number, line.text, entry)
        rule = first_rule(self._rules, line.text, source)
        if rule is None:
            return None
        return Match(
            number,
            line.text,
            rule.name,
            rule.domain,
            rule.severity,
            rule.concerns,
            rule.lasting,
            rule.meaning,
            rule.advice,
            rule.check,
            line.time,
        )

    def _xid(self, text: str) -> Entry | None:
        match = _XID.search(text) or _SXID.search(text)
        number = match.groupdict()["number"] if match else None
        return self._catalog.find(int(number)) if number else None


def first_rule(rules: Iterable[LogRule], text: str, source: Source) -> LogRule | None:
    """The first rule that knows a line of this log; UNKNOWN tries those of all logs."""
    for rule in rules:
        if source in (Source.UNKNOWN, rule.source) and rule.regex.search(text):
            return rule
    return None


def _of_xid(number: int, text: str, entry: Entry) -> Match:
    verdict = judge(entry)
    severity = (
        Severity.FATAL
        if verdict.device_unfit
        else Severity.ERROR
        if verdict.ends_job
        else Severity.WARNING
    )
    return Match(
        number,
        text,
        entry.name.replace(" ", "_").lower(),
        _XID_DOMAIN[entry.domain],
        severity,
        Concerns.NODE if verdict.device_unfit else Concerns.JOB,
        verdict.device_unfit,
        entry.meaning,
        f"{entry.action.value}: {entry.advice}".removesuffix(": "),
    )
