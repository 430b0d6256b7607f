"""Whether the ranks of a job send at the same time: only then is the order of sending evidence. Pure.

In a ring or an all-to-all each rank sends as it enters. In a broadcast, a gather or a pipeline one rank sends long
before another, in every healthy step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.tunables.certainty import KNOWN_PASSES, SENDS_ALIKE_SHARE
from kcover_ebpf.tunables.diagnosis import PAYLOAD_PASSES, SEND_LEAD_NS
from kcover_ebpf.tunables.sampling import SENDERS_EVERY

_PASSES_KEPT = 64


class Senders:
    """The send pattern of the ranks on this host."""

    def __init__(self) -> None:
        self._alike: deque[bool] = deque(maxlen=_PASSES_KEPT)
        self._passes = 0

    def observe(self, ranks: Iterable[ProcessHistory]) -> None:
        """Take one pass of a healthy training."""
        self._passes += 1
        if self._passes % SENDERS_EVERY and len(self._alike) >= KNOWN_PASSES:
            return
        sent = [_sent_ns(rank) for rank in ranks]
        if len(sent) > 1 and any(sent):
            self._alike.append(max(sent) - min(sent) <= SEND_LEAD_NS)

    @property
    def are_alike(self) -> bool | None:
        """True if they send at the same time; None while unknown, or if at most one rank is here."""
        if len(self._alike) < KNOWN_PASSES:
            return None
        return sum(self._alike) >= SENDS_ALIKE_SHARE * len(self._alike)


def _sent_ns(process: ProcessHistory) -> int:
    carriers = (process.sockets[fd] for fd in process.traffic.carriers)
    times = (
        socket.last_send_ns
        for socket in carriers
        if process.traffic.payload_passes(socket) >= PAYLOAD_PASSES
    )
    return max(times, default=0)
