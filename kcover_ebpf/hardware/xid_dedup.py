"""One fact for each Xid, however many rungs of the ladder saw it. Pure: time comes with reports.

Each error reaches every rung that works exactly once, so the n-th report of a number on one rung is
the n-th on any other. The best rung reports at once and takes what it does not carry (process, MIG
instance, the driver's words) from the others. What only a lower rung saw is reported after a pause.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace

from kcover_ebpf.facts.devices import Rung, XidReported
from kcover_ebpf.hardware.kmsg_parser import message_parts
from kcover_ebpf.tunables.hardware import XID_FORGET_NS, XID_HOLD_NS, XID_UNCONFIRMED_NS


@dataclass(slots=True)
class _Entry:
    reported: int = 0
    seen: Counter[Rung] = field(default_factory=Counter)
    delayed: defaultdict[Rung, deque[XidReported]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    last_ns: int = 0

    def pop_delayed(self, report: XidReported) -> list[XidReported]:
        """The other rungs' word on the same error."""
        return [
            reports.popleft()
            for reports in self.delayed.values()
            if reports and _same_words(report.text, reports[0].text)
        ]


class XidDedup:
    """The reports of all rungs, joined; `best` is the highest rung that works now."""

    def __init__(self, best: Rung) -> None:
        self.best = best
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._asked_ns = 0

    def observe(self, report: XidReported) -> XidReported | None:
        """The fact that a report makes; None if reported already, or while a better rung may report."""
        report = _split(report)
        entry = self._entry(report)
        entry.seen[report.rung] += 1
        if entry.seen[report.rung] <= entry.reported:
            return None
        if report.rung is not self.best:
            entry.delayed[report.rung].append(report)
            return None
        return _complete(entry, report)

    def overdue(self, now_ns: int) -> list[XidReported]:
        """What lower rungs saw, and the best one did not in time; asked once after each reading of all rungs.

        What happened before the last time it was asked has been read since, and no more than that is
        certain: a reader that is behind must not take for missed what it has not read yet.
        A line that no source vouches for does not count as reported: it must not hide a real one.
        """
        late = []
        read_ns, self._asked_ns = self._asked_ns, now_ns
        for key, entry in list(self._entries.items()):
            for rung in (Rung.KPROBE, Rung.TRACEPOINT, Rung.KMSG, Rung.NVML, Rung.CONSOLE):
                delayed = entry.delayed[rung]
                hold_ns = XID_UNCONFIRMED_NS if rung is Rung.CONSOLE else XID_HOLD_NS
                while delayed and read_ns - delayed[0].boottime_ns >= hold_ns:
                    report = delayed.popleft()
                    if report.confirmed:
                        late.append(_complete(entry, report))
                    else:
                        entry.seen[rung] -= 1
                        late.append(report)
            if read_ns - entry.last_ns >= XID_FORGET_NS:
                del self._entries[key]
        return late

    def _entry(self, report: XidReported) -> _Entry:
        entry = self._entries.setdefault((report.device, report.number), _Entry())
        if report.boottime_ns - entry.last_ns >= XID_FORGET_NS:
            entry.reported = 0
            entry.seen.clear()
        entry.last_ns = max(entry.last_ns, report.boottime_ns)
        return entry


def _complete(entry: _Entry, report: XidReported) -> XidReported:
    entry.reported += 1
    for other in entry.pop_delayed(report):
        report = _joined(report, other)
    return report


def _split(report: XidReported) -> XidReported:
    pid, process, text = message_parts(report.text)
    return replace(report, pid=report.pid or pid, process=report.process or process, text=text)


def _joined(report: XidReported, other: XidReported) -> XidReported:
    worded = report.text and "%" not in report.text
    return replace(
        report,
        boottime_ns=min(report.boottime_ns, other.boottime_ns),
        text=report.text if worded else other.text,
        confirmed=report.confirmed or other.confirmed,
        pid=report.pid or other.pid,
        process=report.process or other.process,
        gpu_instance=other.gpu_instance if report.gpu_instance is None else report.gpu_instance,
        compute_instance=(
            other.compute_instance if report.compute_instance is None else report.compute_instance
        ),
        link=other.link if report.link is None else report.link,
    )


def _same_words(reported: str, line: str) -> bool:
    """Whether two reports can be one; a format that was not filled fits every line."""
    return not reported or "%" in reported or reported in line or line in reported
