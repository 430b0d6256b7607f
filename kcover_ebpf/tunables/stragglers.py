"""Tunables of stragglers: when a rank that others wait for is slow; each with unit and reason.

The values are from simulated gangs of 2 to 8 ranks with steps of 0.2 to 5 s, whose lengths differ by 4%, by 30% at
random, or by what rank 0 does besides (`tests/unit/diagnosis/clock/test_step_watch.py`).
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Who is slow

WINDOWS_S = (24.0, 48.0, 96.0, 192.0)
"""Seconds over which steps are counted: short windows for short steps, long ones so that several steps of a minute fit
in."""
OBSERVED_SHARE = 0.8
"""Share of a window that must be observed: while a job is suspicious its passes do not count here."""
LATE_SHARE = 0.13
"""Share of the time in which all others wait for one rank from which on it is slow: it takes 1.15 times as long as they
do."""
LATE_STEPS = 3
"""Steps in which a rank must be last, at least."""
OTHERS_PART = 0.25
"""Steps in which another rank may be last, per step in which the suspect is: a quarter."""
LATE_LEAST_S = 0.005
"""Seconds below which waits are those of the scheduler."""
CHANCE = 1e-4
"""Probability of the observation by chance, below which a rank is slow: that the same rank is last in this many steps,
and that all waits longer than those before lie in one window. So a job that has trained for long is judged sooner."""
LEARNED_S = 24.0
"""Seconds of waits before the window that must be known before they count."""

# --- When ranks are compared

SUSPECT_S = 12.0
"""Seconds of steps in which one rank was last, for it to be a suspect."""
SUSPECT_STEPS = 2
"""Steps in which it must be last, at least, to be a suspect."""
SUSPECT_SHARE = 0.08
"""Share of the time by which the others must wait longer for it than before, to be a suspect."""
WAITED_BEFORE_S = 15.0
"""Seconds of earlier observation: if all ranks here wait longer than they did then, the slow rank may be on another
node."""
FASTER = 3
"""Factor by which passes are more frequent while ranks are compared."""
COMPARED_S = 30.0
"""Seconds for which ranks are compared."""
COMPARED_PERIOD_S = 120.0
"""Seconds from the start of one comparison to the next, at least: two more passes a second for a quarter of the time
would cost 0.05% of a core, in a job that lags more and more."""
COMPARED_PERIOD_MOST_S = 960.0
"""Seconds up to which that period doubles after comparisons in vain. The ranks of a job whose steps differ by a third
are then compared for 5% of its time instead of 19% (simulated), and a slow one is named as soon."""

# --- Passes

SLOT_SPREAD_S = 0.2
"""Seconds by which the first slot of a second is delayed at most: regular passes are 0.92 to 1.13 s apart, as other
tunables expect."""
GOLDEN_RATIO = 0.6180339887498949
"""Part of `SLOT_SPREAD_S` that is added to the delay each second: a low-discrepancy sequence, which does not repeat
within seconds."""
PASSES_KEPT = 400
"""Passes that are kept: those of the longest window at the higher frequency, and some before."""
LONGEST_GAP_S = 1.5
"""Seconds that one pass stands for at most, however long ago the one before it was."""
RECENT_PASSES = 16
"""Passes, the newest ones, by which it is judged whether others wait for a rank that a quota throttles."""

# --- What a Lease says

PACE_WINDOW = 96
"""Passes whose waits are reported to a controller, at most."""
PACE_PASSES = 24
"""Passes whose waits are reported, at least."""
PACE_PERIOD_NS = 5 * NS
"""Nanoseconds between two counts of these waits."""
PACE_COMPARED_NS = NS
"""Nanoseconds between two counts while ranks are compared."""
PACE_APART = 0.05
"""Share of the time by which each other rank of a gang must wait more than the slow one: a hint, from shares that may
be half a minute old."""
RANKS_COMPARED = 1024
"""Ranks of a gang above which the controller compares none: the positions at 450 slots take some 100 KB a rank."""
SHORTEST_AGE_S = 0.001
"""Seconds of the shortest reported wait; waits are reported in steps of half a doubling."""
SLOTS = 450
"""Slots of a third of a second for which a Lease reports where the ranks were: two and a half minutes."""

# --- Jobs that slow down, and ranks that lack something

STANDSTILL_SHARE = 0.05
"""Share of the median rate of progress in the last hour: a job below it in a minute makes hardly any progress.
Chosen."""
STANDSTILL_MINUTES = 5
"""Minutes in a row below that share after which the job has come to a standstill. A single phase without progress is a
silence. Chosen."""
KNOWN_MINUTES = 15
"""Minutes after which the median rate of progress is known."""
SWAPPING_PER_S = 20.0
"""Major faults a second from which on a slow rank lacks memory. Chosen: loading of libraries is over by then."""
THROTTLED_ALONE_NS = 15 * NS
"""Nanoseconds for which a quota must have kept one rank alone off the CPU most of the time to be what slows the job
down. Chosen: longer than loading or a checkpoint exhausts a quota in most jobs."""
THROTTLED_OTHERS_SHARE = 1 / 3
"""Share of that time for which the other ranks must wait: as in a job that is slower by half."""

# --- Lossy and narrow links of a slow job

LOSS_SHARE = 0.8
"""Share of all retransmissions that must have an end at one rank before it is named."""
LOSS_RATE_AT_FULL_SPEED_PER_S = 9.0
"""Retransmissions a second for a job that moves as much as it used to: with 5% of its packets lost one showed 6.1 and
was as fast as before (fault bench)."""
NARROW_PASSES = 12
"""Passes of a slowed job over which bytes that wait to be sent are compared."""
NARROW_SHARE = 0.7
"""Share of these passes in which all waiting bytes must have an end at one rank, and at no other, for its link to be
narrow."""
