"""Chosen numbers of lost, lossy and narrow links between ranks."""

from __future__ import annotations

from kcover_ebpf.ids import NS

LOST_BACKOFF = 3
"""Doublings of the retransmission time-out without an answer: 0.2 s + 0.4 s + 0.8 s and more."""
LOST_ON_LOSSY_BACKOFF = 6
"""The same where other segments still get through: there one is lost four times in a row now and then."""
LOSS_WINDOW_NS = 10 * NS
"""Retransmissions of so long are counted; half of it must be covered."""
LOSS_RATE_PER_S = 6.0
"""Retransmissions a second of a job whose link is lossy. A healthy one on a loaded host shows 0.1 to 0.4 spurious
ones, one that loses 5% of its packets up to 4.5 without being slower for it (measured: hang lab, fault bench)."""
LOSS_RATE_AT_FULL_SPEED_PER_S = 9.0
"""The same for a job to be called slow that moves as much as it used to: with 5% of its packets lost one showed 6.1 and
was as fast as before (fault bench)."""
LOSS_RATE_WHEN_SLOWED_PER_S = 1.0
"""Retransmissions a second of a lossy link where the job moves less than it used to."""
LOSS_SHARE = 0.8
"""One rank is named when so much of all retransmissions has an end there."""
NARROW_PASSES = 12
"""Passes of a slowed job over which bytes that wait to be sent are compared."""
NARROW_SHARE = 0.7
"""A rank's link is narrow if in so much of them all bytes that wait have an end there, and at no other rank."""
LOSSY_SILENCE_S = 4.5
"""Through a lossy link something gets before: TCP's first four repetitions, 0.2 s to 1.6 s apart, are over after 3
s."""
