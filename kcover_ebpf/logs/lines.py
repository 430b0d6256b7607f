"""One line of a log without what the log itself put in front, and where the line came from. Pure.

Formats: /dev/kmsg records (Documentation/ABI/testing/dev-kmsg), `dmesg` with and without `-T` or
`-x`, journal and syslog lines, and the CRI's container log files (kubernetes/enhancements, "CRI
container log format": time, stream, P or F, text).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from kcover_ebpf.api import rfc3339
from kcover_ebpf.hardware import kmsg_parser


class Source(StrEnum):
    """Who wrote a line."""

    KERNEL = "kernel"
    CONTAINER = "container"
    UNKNOWN = "unknown"
    """Nothing in front of it: a bare line of either."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """The message of one line, and its origin."""

    source: Source
    text: str
    stream: str = ""
    """`stdout` or `stderr` of a CRI line, else empty."""
    time: str = ""
    """When a container runtime read it (RFC 3339), else empty."""

    @property
    def time_s(self) -> float | None:
        """The same in unix seconds; None where the line does not say."""
        return unix_s(self.time)


def unix_s(time: str) -> float | None:
    """Unix seconds of the time of a line; None where that is empty or no time."""
    try:
        return rfc3339.from_text(time)
    except ValueError:
        return None


_CRI = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))"
    r" (?P<stream>stdout|stderr)"
    r" [PF][^ ]* "
)
_DECODED = re.compile(
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d)\s*"
    r":\s*\w+\s*:\s*"
)
_BRACKET_TIME = re.compile(
    r"\[(?: *\d+\.\d+(?: <[ .\d]+>)?| *\+\d+\.\d+"
    r"|\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}|\w{3} ?[ \d]\d \d\d:\d\d)\](?:\[ *[TC]\d+\])? ?"
)
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)? ")
_DMESG_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d ")
_SYSLOG = re.compile(
    r"(?:\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? |(?:\w{3} )?\d{4}-\d\d-\d\d[T ]\S+ (?:[A-Z]{3,5} )?)?"
    r"(?:\S+ )?kernel: (?:\[ *\d+\.\d+\] )?(?:message repeated \d+ times: \[ ?)?"
)


def parse(line: str) -> LogLine | None:
    """The line's message; None for one in the kernel's log that user space wrote: it may be forged."""
    if (record := kmsg_parser.split_record(line)) is not None:
        return LogLine(Source.KERNEL, record.text) if record.from_kernel else None
    if match := _CRI.match(line):
        return LogLine(Source.CONTAINER, line[match.end() :], match["stream"], match["time"])
    rest, source = line, Source.UNKNOWN
    if match := _DECODED.match(rest):
        if match["facility"] != "kern":
            return None
        rest, source = rest[match.end() :], Source.KERNEL
        if match := _ISO_TIME.match(rest):
            rest = rest[match.end() :]
    if match := _DMESG_ISO_TIME.match(rest):
        rest = rest[match.end() :]
    if match := _BRACKET_TIME.match(rest):
        rest, source = rest[match.end() :], Source.KERNEL
    if match := _SYSLOG.match(rest):
        rest, source = rest[match.end() :], Source.KERNEL
    return LogLine(source, rest)
