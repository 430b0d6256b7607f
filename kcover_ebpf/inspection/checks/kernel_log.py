"""Finds kernel log lines since boot that the rules know as faults of the node (docs/logs.md)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from kcover_ebpf.api import rfc3339
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.xid import kmsg_parser, kmsg_reader
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import KERNEL_LINE_RECENT_S

_CLEAR = "after the repair clear the log (dmesg --clear) or reboot"
_BAD = frozenset({"fatal", "error"})


@dataclass(slots=True)
class _Kind:
    """The lines that match one rule."""

    first: str
    last_s: float
    count: int
    is_bad: bool
    meaning: str
    advice: str


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each rule about the node with matching lines, or one that there are none."""
    try:
        raw = list(kmsg_reader.stored(f"{options.root}/dev/kmsg"))
    except OSError as error:
        yield unknown(
            f"/dev/kmsg cannot be read: {error.strerror}", "run privileged, or with CAP_SYSLOG"
        )
        return
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    yield from judged(raw, now_s, time.time() - now_s, options.log_rules, options.answered)


def judged(
    raw: Iterable[bytes],
    now_s: float,
    unix_offset_s: float,
    own_rules: Path | None = None,
    answered: Collection[str] = (),
) -> Iterator[CheckFinding]:
    """The findings for these records of /dev/kmsg, in order.

    `now_s`: current time on their clock; `unix_offset_s`: what to add for unix time. `own_rules`: a file of rules
    that are tried first. `answered`: checks of the same round that observed something.

    A fault fails the node if it lasts until a repair or a reboot, or if no check in `answered` would show its end.
    Any other fault is a warning while it is recent. Lines from user space do not count, nor do lines that only
    concern a job.
    """
    lines = [chunk.partition(b"\n")[0] for chunk in raw]  # after the first newline come properties
    kinds: dict[str, _Kind] = {}
    for name, kind in _known(lines, own_rules, answered):
        before = kinds.setdefault(name, kind)
        if before is not kind:
            before.last_s, before.count = kind.last_s, before.count + 1
    recent = [
        _finding(name, kind, unix_offset_s)
        for name, kind in kinds.items()
        if kind.is_bad or now_s - kind.last_s < KERNEL_LINE_RECENT_S
    ]
    if recent:
        yield from recent
    else:
        yield passed(f"none of {len(lines)} lines says that the node is unfit")


def _known(
    lines: list[bytes], own_rules: Path | None, answered: Collection[str]
) -> Iterator[tuple[str, _Kind]]:
    # imported here: compiling some sixty patterns takes as long as the rest of the check
    from kcover_ebpf.devices.catalog import Catalog
    from kcover_ebpf.logs import rules
    from kcover_ebpf.logs.lines import Source
    from kcover_ebpf.logs.reader import LogReader
    from kcover_ebpf.logs.rules import Concerns

    own = [rule for rule in rules.load(own_rules) if rule.source is Source.KERNEL]
    # Xids are reported as faults with an end, so they are not searched for here
    reader = LogReader(own, Catalog({}))
    for match in reader.feed(b"\n".join([*lines, b""])):
        record = kmsg_parser.split_record(lines[match.number - 1].decode("utf-8", "replace"))
        if match.concerns is Concerns.NODE and record is not None:
            is_seen = match.check in answered
            is_bad = match.lasting and match.severity in _BAD and not is_seen
            yield (
                match.rule,
                _Kind(match.line, record.time_s, 1, is_bad, match.meaning, match.advice),
            )


def _finding(name: str, kind: _Kind, unix_offset_s: float) -> CheckFinding:
    often = f"{kind.count} times, last" if kind.count > 1 else "once,"
    # the time itself, not the age: a text that changes would be another condition and another Event
    last = f"{rfc3339.to_text(unix_offset_s + kind.last_s)[:16]}Z"
    text = f"{name}: {kind.meaning or kind.first} ({often} at {last})"
    if kind.is_bad:
        return failed(text, "; ".join(filter(None, (kind.advice, _CLEAR))))
    return warned(text, kind.advice)


CHECK = Check(
    "kernel_log",
    Cost.LIGHT,
    10.0,
    "no kernel log line matches a [rule](logs.md) about the node. A lasting fault fails the node until the log is "
    "cleared or the node reboots, unless another check of the same round examines it; any other fault is a warning "
    "for an hour",
    "`/dev/kmsg`",
    find,
    by_others=True,
)
