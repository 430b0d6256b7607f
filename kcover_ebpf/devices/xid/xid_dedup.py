"""One fact for each Xid, although several rungs of the ladder report it.

Pure: reports carry their time. Each error reaches every working rung exactly once, so the n-th report of a number
on one rung is the n-th on any other. The best rung's report becomes a fact at once; its missing fields (process,
MIG instance, message) come from the others. An error that only lower rungs saw becomes a fact after a pause.
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
        """Remove and return the other rungs' reports of the same error."""
        return [
            reports.popleft()
            for reports in self.delayed.values()
            if reports and _same_words(xid.text, reports[0].text)
        ]


class XidDedup:
    """Joins the reports of all rungs; `best` is the highest rung that works now."""

    def __init__(self, best_rung: Rung) -> None:
        self.best = best_rung
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._asked_ns = 0

    def observe(self, xid: XidReported) -> XidReported | None:
        """The fact that a report makes; None if reported already, or while a better rung may still report."""
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
        """Errors that lower rungs reported and the best rung did not report in time.

        Call it after each read of all rungs. Only reports older than the previous call are certain to have been
        read from every source; only those may be declared missed. A line that no trusted source confirms does not
        count as reported, because it must not hide a real error.
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
    """Whether two reports can describe the same error; an unformatted message matches any line."""
    return not reported or "%" in reported or reported in line or line in reported
