"""Parses one line of a log: removes the prefix of the log, and determines the source.

Pure. Formats: /dev/kmsg records (Documentation/ABI/testing/dev-kmsg), `dmesg` with and without `-T`, `-x` or `-r`,
`talosctl dmesg`, journal and syslog lines (RFC 3164, RFC 5424), and the CRI's container log files
(kubernetes/enhancements, "CRI container log format": time, stream, P or F, text). For prefixes of launchers and
loggers see `heads`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum

from kcover_ebpf.api import rfc3339
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.xid import kmsg_parser
from kcover_ebpf.logs import heads, json_records
from kcover_ebpf.logs.levels import LogLevel


class Source(StrEnum):
    """Which log a line belongs to, and with it which rules apply."""

    KERNEL = "kernel"
    CONTAINER = "container"
    UNKNOWN = "unknown"
    """A bare line without prefix, from either log."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """The message of one line, and its origin."""

    source: Source
    text: str
    """The message, without the heads of launchers and loggers."""
    stream: str = ""
    """`stdout` or `stderr` of a CRI line; empty for others."""
    time: str = ""
    """Time at which a container runtime read it (RFC 3339); empty for other lines."""
    written: str = ""
    """The program's text, including heads of launchers and loggers; for kernel lines the same as `text`."""
    process: str = ""
    """Process name from a launcher's head; empty if there is none."""
    rank: int | None = None
    """Global rank of the process; None if not stated."""
    level: LogLevel | None = None
    """Level stated by the line's logger; None if there is none."""

    @property
    def time_s(self) -> float | None:
        """`time` in unix seconds; None if the line has no time."""
        return unix_s(self.time)


def unix_s(time: str) -> float | None:
    """Unix seconds of a line's time; None if it is empty or invalid."""
    try:
        return rfc3339.from_text(time)
    except ValueError:
        return None


_TIME_BYTES = 100
"""Longer than the time stamp and tags that the CRI puts in front of a line."""
_KERNEL_FACILITY_BELOW = 8
"""A syslog priority is facility * 8 + level; facility 0 is the kernel."""
_CRI = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d))"
    r" (?P<stream>stdout|stderr)"
    r" [PF][^ ]{0,16} "
)
_PRIORITY = re.compile(r"<(?P<priority>\d{1,3})>")
_RFC5424 = re.compile(
    r"1 (?:-|\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d)) \S{1,255} \S{1,48} \S{1,128} \S{1,32}"
    r" (?:-|\[[^\]]{0,500}\]) ?"
)
# `dmesg -x`; talosctl adds the time in brackets after it
_FACILITIES = "kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\\d"
_DECODED = re.compile(
    rf"(?P<facility>{_FACILITIES})\s{{0,8}}"
    r":\s{0,8}(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)\s{0,8}:\s{0,8}"
)
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,\d]{0,10}(?:Z|[+-]\d\d:?\d\d)?"
_BRACKET_TIME = re.compile(
    r"\[(?: {0,12}\d{1,9}\.\d{1,9}(?: <[ .\d]{1,30}>)?| {0,12}\+\d{1,9}\.\d{1,9}"
    r"|\w{3} \w{3} {1,3}\d{1,2} \d\d:\d\d:\d\d \d{4}(?: <[ .\d]{1,30}>)?|<[ .\d]{1,30}>"
    r"|\w{3} ?[ \d]\d \d\d:\d\d(?::\d\d)?"
    r")\](?: ?\[ {0,12}[TC]\d{1,10}(?:@\d{1,6})?\])? ?"
)
_ISO_TIME = re.compile(rf"(?:{_ISO} |\[{_ISO}\]: ?)")
_STAMP = (
    r"(?:(?:\d{4} )?[A-Z][a-z]{2} {1,2}\d{1,2} (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{9,11}\.\d{3,6}"
    r"|(?:\w{3} )?\d{4}-\d\d-\d\d[T ][\d:]{5,8}[^\s,]{0,24}(?: [A-Z]{3,5})?|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)"
)
"""Time formats of journals and syslog daemons: RFC 3164 with and without a year, Unix seconds, ISO,
`short-full`."""
_DMESG_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d ")
_SYSLOG = re.compile(
    rf"(?:{_STAMP} )?"
    r"(?:[^\s\[\]]{1,255} )?(?:kern\.\w{1,8} )?(?:kernel(?:\[0\])?: ){1,2}"
    r"(?:\[(?: {0,12}\d{1,12}\.\d{1,9}|\w{3} \w{3} {1,3}\d{1,2} \d\d:\d\d:\d\d \d{4})\] )?"
    r"(?:message repeated \d{1,9} times: \[ ?)?"
)
_OF_UNIT = re.compile(r"[^\s\[\]]{1,255} [\w.@/:-]{1,128}\[\d{1,10}\]: ")
"""Host, program and pid: the journal's prefix for a line from user space."""
_COPIED = re.compile(
    r"(?:(?:[\w./@-]{1,255}:(?:\d{1,9}:)? ?)(?=\[ {0,12}\d{1,9}\.\d|\[\w{3} \w{3} {1,3}\d|<\d{1,3}>"
    r"|(?:\w{3} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,40}) \S{1,255} kernel: "
    rf"|(?:{_FACILITIES})\s{{0,8}}:\s{{0,8}}\w{{3,7}}\s{{0,8}}:)"
    rf"|{_ISO} (?=\[ {{0,12}}\d{{1,9}}\.\d)"
    r"|\d{1,2}\.\d{1,3}[\w.+-]{0,80},(?=\d{1,3},\d{1,20},\d{1,20},))"
)
"""Prefixes of pdsh, grep and netconsole in front of a kernel line: host or file, time, release."""
_DAEMONS = r"nv-fabricmanager|nvidia-fabric|multipathd?\b|mmfs|weka"
"""Daemons of devices and storage; their rules are listed together with the kernel's."""
_OF_PROGRAM = re.compile(
    rf"{_STAMP} (?:[\w.-]{{1,255}} )?(?!kernel\b|{_DAEMONS})[\w.@/-]{{1,128}}\[\d{{1,10}}\]: "
    rf"|{_STAMP} (?!(?i:trace|debug|info|notice|warn|warning|err|error|fatal|critical)\b)[\w.-]{{1,255}}"
    rf" (?!kernel\b|{_DAEMONS})[A-Za-z][\w.@/-]{{0,127}}: "
)
"""Time, host, program and pid: a line that a program wrote through syslog or the journal."""
_MOST_NESTED = 2


def cri_time(line: str) -> tuple[str, str]:
    """(time of a line in a container's log file, text of its program); both empty for any other line."""
    match = _CRI.match(line)
    return (match["time"], line[match.end() :]) if match else ("", "")


def parse(line: str) -> LogLine | None:
    """The parsed line.

    None for a blank line, and for text that user space wrote to the kernel log, because it may be forged.
    """
    return _parsed(line, _MOST_NESTED) if line.strip() else None


def _parsed(line: str, nested: int) -> LogLine | None:
    if match := _CRI.match(line):
        return _of_program(line[match.end() :], match["stream"], match["time"], nested)
    line = _without(_COPIED, line)
    if (record := kmsg_parser.split_record(line)) is not None:
        return _of_kernel(record.text) if record.from_kernel else None
    if _OF_PROGRAM.match(line):
        return replace(_of_program(line, "", "", nested), source=Source.CONTAINER)
    # `journalctl -o json-seq` and `json-sse` mark the beginning of a record
    record_text = line.removeprefix("\x1e").removeprefix("data: ")
    if record_text.startswith('{"') and nested:
        found = json_records.plain(record_text)
        if found is not None:
            return _parsed(" ".join(found), nested - 1) if found else None
    behind = _of_kernel_log(line)
    if behind is None:
        return None
    rest, is_of_kernel = behind
    return _of_kernel(rest) if is_of_kernel else _of_program(rest, "", "", nested)


def time_s_of(raw: bytes) -> float | None:
    """Unix seconds of a line that begins with a container runtime's time; None if it has none."""
    line = parse(raw[:_TIME_BYTES].decode("utf-8", "replace"))
    return None if line is None else line.time_s


def time_s_at(block: bytes, at: int, now_s: float) -> float:
    """Unix seconds of the line that contains offset `at` of a block; `now_s` if it has no time, or one to come."""
    start = max(block.rfind(b"\n", 0, at), block.rfind(b"\r", 0, at)) + 1
    found = time_s_of(block[start : start + _TIME_BYTES])
    return now_s if found is None else min(found, now_s)


def _of_kernel_log(line: str) -> tuple[str, bool] | None:
    """The text after a kernel log's head, and whether there was a head; None for text that user space wrote."""
    rest, is_of_kernel = line, False
    if match := _PRIORITY.match(rest):
        if int(match["priority"]) >= _KERNEL_FACILITY_BELOW:
            return None
        rest, is_of_kernel = _without(_RFC5424, rest[match.end() :]), True
    if match := _DECODED.match(rest):
        if match["facility"] != "kern":
            return None
        rest, is_of_kernel = _without(_ISO_TIME, rest[match.end() :]), True
    rest = _without(_DMESG_ISO_TIME, rest)
    behind_time = _without(_BRACKET_TIME, rest)
    behind_name = _without(_SYSLOG, behind_time)
    is_of_kernel = is_of_kernel or behind_name != rest
    if behind_name == behind_time and is_of_kernel and _OF_UNIT.match(behind_time):
        return None
    return behind_name, is_of_kernel


def _without(head: re.Pattern[str], text: str) -> str:
    match = head.match(text)
    return text if match is None else text[match.end() :]


def _of_kernel(text: str) -> LogLine:
    return LogLine(Source.KERNEL, text, written=text)


def _of_program(written: str, stream: str, time: str, nested: int) -> LogLine:
    """A line of a program; its source is unknown if it has no stream."""
    head = heads.split(_without(_OF_PROGRAM, written))
    found = json_records.plain(head.text) if nested and head.text.startswith('{"') else None
    if found:
        inner = heads.split(" ".join(found))
        head = heads.Head(
            inner.text,
            head.process or inner.process,
            head.rank if inner.rank is None else inner.rank,
            inner.level or head.level,
        )
    source = Source.CONTAINER if stream else Source.UNKNOWN
    return LogLine(source, head.text, stream, time, written, head.process, head.rank, head.level)
