"""Links that lose packets, or are too narrow, while the job continues, and the rank that they have in common."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import SocketSample, TcpRetransmit
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.links import LOSS_RATE_PER_S, LOSS_RATE_WHEN_SLOWED_PER_S, LOSS_WINDOW_NS
from kcover_ebpf.tunables.stragglers import LOSS_SHARE, NARROW_PASSES, NARROW_SHARE

_MOST = 4096


@dataclass(frozen=True, slots=True)
class LossyLink:
    """Retransmissions per second between ranks, and the rank that most of them touch (None: no single one)."""

    rate_per_s: float
    pid: Pid | None
    is_local: bool
    """True if the losses concern one rank or one link; False if all are late, as when ranks get too little CPU."""


class LossWatch:
    """The retransmissions of the last seconds, by the ranks at both ends."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, frozenset[Pid]]] = deque(maxlen=_MOST)

    def observe(self, retransmit: TcpRetransmit, ranks: Mapping[Pid, ProcessHistory]) -> None:
        """Take one retransmission; those on connections to anything except a rank do not count."""
        if retransmit.pid in ranks and (ends := _ends(ranks, retransmit)):
            self._seen.append((retransmit.boottime_ns, ends))

    def lossy(self, now_ns: int, slowed: bool) -> LossyLink | None:
        """The lossy link of the last ten seconds; None while losses are as rare as in healthy times.

        `slowed`: the job moves fewer bytes than it used to, so fewer losses matter.
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
        return LossyLink(rate, pid if alone else None, is_local=alone or len(touched) == 2)


def _ends(
    ranks: Mapping[Pid, ProcessHistory], seen: TcpRetransmit | SocketSample
) -> frozenset[Pid] | None:
    """The ranks at both ends of a connection; None if the other end is no rank here."""
    far_end = seen.remote, seen.local
    peers = (pid for pid, process in ranks.items() if far_end in process.links.pairs)
    return next((frozenset({seen.pid, pid}) for pid in peers if pid != seen.pid), None)


class NarrowLink:
    """Senders of the last passes whose bytes wait to be sent or acknowledged, by the ranks at both ends.

    The kernel keeps what a link cannot take: unsent, or sent and not acknowledged. If steps are limited by computing,
    these bytes are gone when a pass samples them; on a narrow link they remain.
    """

    def __init__(self) -> None:
        self._passes: deque[frozenset[frozenset[Pid]]] = deque(maxlen=NARROW_PASSES)

    def observe(self, ranks: Mapping[Pid, ProcessHistory]) -> None:
        """Take one pass of a job that moves fewer bytes than it used to."""
        samples = (sample for process in ranks.values() for sample in process.connections)
        waiting = (sample for sample in samples if sample.unsent_bytes + sample.unacked_bytes > 0)
        pairs = (_ends(ranks, sample) for sample in waiting)
        self._passes.append(frozenset(ends for ends in pairs if ends is not None))

    def forget(self) -> None:
        """Forget the passes: the job is as fast as before."""
        self._passes.clear()

    @property
    def pid(self) -> Pid | None:
        """The rank with the narrow link: in most passes the waiting bytes have an end there. None if there is none."""
        if len(self._passes) < NARROW_PASSES:
            return None
        held = [pairs for pairs in self._passes if pairs]
        touched = Counter(pid for pairs in held for pid in frozenset.intersection(*pairs))
        if not touched:
            return None
        (pid, count), *others = touched.most_common(2)
        alone = not others or others[0][1] < count
        return pid if alone and count >= NARROW_SHARE * NARROW_PASSES else None
