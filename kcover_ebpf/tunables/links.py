"""Tunables of lost, lossy and narrow links between ranks, each with unit and reason."""

from __future__ import annotations

from kcover_ebpf.ids import NS

LOST_BACKOFF = 3
"""Doublings of the retransmission time-out without an answer: 0.2 s + 0.4 s + 0.8 s and more."""
LOST_ON_LOSSY_BACKOFF = 6
"""Doublings where other segments still get through: there, one segment is lost four times in a row now and then."""
LOSS_WINDOW_NS = 10 * NS
"""Nanoseconds over which retransmissions are counted; half of them must be observed."""
LOSS_RATE_PER_S = 6.0
"""Retransmissions a second of a job whose link is lossy. A healthy one on a loaded host shows 0.1 to 0.4 spurious
ones, one that loses 5% of its packets up to 4.5 without being slower for it (measured: hang lab, fault bench)."""
LOSS_RATE_WHEN_SLOWED_PER_S = 1.0
"""Retransmissions a second of a lossy link where the job moves less than it used to."""
LOSSY_SILENCE_S = 4.5
"""Seconds within which data gets through a lossy link: TCP's first four repetitions, 0.2 s to 1.6 s apart, are over
after 3 s."""
PORT_ERRORS_NS = 30 * NS
"""Nanoseconds over which errors of an RDMA port are counted: six readings. Chosen."""
PORT_ERRORS_READINGS = 2
"""Readings in this time that must show errors: one burst does not make a bad link. Chosen."""
PORT_ERRORS_PER_S = 1.0
"""Errors a second from which an RDMA port may be why a job is slow, as `LOSS_RATE_WHEN_SLOWED_PER_S` for TCP. Chosen:
not measured on hardware."""
PORT_ERRORS_FACTOR = 3.0
"""Least ratio of the errors to those of the port's usual minute: with adaptive routing, packets out of order are
normal. Chosen."""
PORT_ERRORS_APART = 1.5
"""Least ratio of a port's errors to those of any other port that the job has open here, for the port to be named. A
lost packet is counted at both ends of its link: in a ring on one host, the bad port has twice the errors of each of its
neighbours. Chosen."""
