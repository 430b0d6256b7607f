"""One fact for each Xid, however many rungs of the ladder saw it. Pure: time comes with reports.

Each error reaches every rung that works exactly once, so the n-th report of a number on one rung is
the n-th on any other. The best rung reports at once and takes what it does not carry (process, MIG
instance, the driver's words) from the others. What only a lower rung saw is reported after a pause.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import field, replace

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.devices import Rung, XidReported
from kcover_ebpf.tunables.devices import XID_FORGET_NS, XID_HOLD_NS, XID_UNCONFIRMED_NS


@dataclass(slots=True)
class _Entry:
    reported: int = 0
    seen: Counter[Rung] = field(default_factory=Counter)
    delayed: defaultdict[Rung, deque[XidReported]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    last_ns: int = 0

    def pop_delayed(self, xid: XidReported) -> list[XidReported]:
        """The other rungs' word on the same error."""
        return [
            reports.popleft()
            for reports in self.delayed.values()
            if reports and _same_words(xid.text, reports[0].text)
        ]


class XidDedup:
    """The reports of all rungs, joined; `best` is the highest rung that works now."""

    def __init__(self, best_rung: Rung) -> None:
        self.best = best_rung
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._asked_ns = 0

    def observe(self, xid: XidReported) -> XidReported | None:
        """The fact that a report makes; None if reported already, or while a better rung may report."""
        xid = _split(xid)
        entry = self._entry(xid)
        entry.seen[xid.rung] += 1
        if entry.seen[xid.rung] <= entry.reported:
            return None
        if xid.rung is not self.best:
            entry.delayed[xid.rung].append(xid)
            return None
        return _complete(entry, xid)

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

    def _entry(self, xid: XidReported) -> _Entry:
        entry = self._entries.setdefault((xid.device, xid.number), _Entry())
        if xid.boottime_ns - entry.last_ns >= XID_FORGET_NS:
            entry.reported = 0
            entry.seen.clear()
        entry.last_ns = max(entry.last_ns, xid.boottime_ns)
        return entry


def _complete(entry: _Entry, xid: XidReported) -> XidReported:
    entry.reported += 1
    for other in entry.pop_delayed(xid):
        xid = _joined(xid, other)
    return xid


def _split(xid: XidReported) -> XidReported:
    from kcover_ebpf.devices.xid.kmsg_parser import message_parts

    pid, process, text = message_parts(xid.text)
    return replace(xid, pid=xid.pid or pid, process=xid.process or process, text=text)


def _joined(xid: XidReported, other_xid: XidReported) -> XidReported:
    worded = xid.text and "%" not in xid.text
    return replace(
        xid,
        boottime_ns=min(xid.boottime_ns, other_xid.boottime_ns),
        text=xid.text if worded else other_xid.text,
        confirmed=xid.confirmed or other_xid.confirmed,
        pid=xid.pid or other_xid.pid,
        process=xid.process or other_xid.process,
        gpu_instance=other_xid.gpu_instance if xid.gpu_instance is None else xid.gpu_instance,
        compute_instance=(
            other_xid.compute_instance if xid.compute_instance is None else xid.compute_instance
        ),
        link=other_xid.link if xid.link is None else xid.link,
    )


def _same_words(reported: str, line: str) -> bool:
    """Whether two reports can be one; a format that was not filled fits every line."""
    return not reported or "%" in reported or reported in line or line in reported
