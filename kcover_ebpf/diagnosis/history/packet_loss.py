"""Links that lose packets while the job continues: which rank they have in common."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import TcpRetransmit
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.diagnosis import (
    LOSS_RATE_PER_S,
    LOSS_RATE_WHEN_SLOWED_PER_S,
    LOSS_SHARE,
    LOSS_WINDOW_NS,
)

_MOST = 4096


@dataclass(frozen=True, slots=True)
class LossyLink:
    """Retransmissions per second between ranks, and the rank that most of them touch (None: no single one)."""

    rate_per_s: float
    pid: Pid | None


class LossWatch:
    """The retransmissions of the last seconds, by the ranks at both ends."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, frozenset[Pid]]] = deque(maxlen=_MOST)

    def observe(self, retransmit: TcpRetransmit, ranks: Mapping[Pid, ProcessHistory]) -> None:
        """Take one retransmission; those on connections to anything but a rank do not count."""
        if retransmit.pid not in ranks:
            return
        for pid, process in ranks.items():
            far_end = retransmit.remote, retransmit.local
            if pid != retransmit.pid and far_end in process.links.pairs:
                self._seen.append((retransmit.boottime_ns, frozenset({retransmit.pid, pid})))
                return

    def lossy(self, now_ns: int, slowed: bool) -> LossyLink | None:
        """The lossy link of the last ten seconds; None while losses are as rare as in healthy times.

        `slowed`: the job moves fewer bytes than it used to, so that fewer losses matter.
        """
        if not self._seen:
            return None
        while self._seen and now_ns - self._seen[0][0] > LOSS_WINDOW_NS:
            self._seen.popleft()
        rate = len(self._seen) * NS / LOSS_WINDOW_NS
        least = LOSS_RATE_WHEN_SLOWED_PER_S if slowed else LOSS_RATE_PER_S
        if rate < least or now_ns - self._seen[0][0] < LOSS_WINDOW_NS // 2:
            return None
        touched = Counter(pid for _, ends in self._seen for pid in ends)
        (pid, count), *others = touched.most_common(2)
        alone = count >= LOSS_SHARE * len(self._seen) and (not others or others[0][1] < count)
        return LossyLink(rate, pid if alone else None)
