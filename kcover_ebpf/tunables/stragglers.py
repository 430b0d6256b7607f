"""Tunables of stragglers: when a rank that others wait for is slow; each with unit and reason.

The values are from simulated gangs of 2 to 8 ranks with steps of 0.2 to 5 s, whose lengths differ by 4%, by 30% at
random, or by what rank 0 does besides (`tests/unit/diagnosis/clock/test_step_watch.py`).
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Who is slow

WINDOWS_S = (24.0, 48.0, 96.0, 192.0)
"""Times over which steps are counted: short ones for short steps, long ones so that several of a minute fit in."""
OBSERVED_SHARE = 0.8
"""Part of such a time that has to be seen: while a job is suspicious its passes count for nothing here."""
LATE_SHARE = 0.13
"""Of the time, in which all others wait for one rank: it takes 1.15 times as long as they."""
LATE_STEPS = 3
"""Steps in which it is last, at least;"""
OTHERS_PART = 0.25
"""for each of them, steps in which another is."""
LATE_LEAST_S = 0.005
"""Shorter waits are those of the scheduler."""
CHANCE = 1e-4
"""A rank is slow where chance does it so rarely: that the same one is last in so many steps, and that all waits which
are longer than those before lie in one window. So a job that has trained for long is judged sooner."""
LEARNED_S = 24.0
"""Waits before the window count from so many seconds on."""

# --- When ranks are compared

SUSPECT_S = 12.0
"""One rank may be slow that was last in steps of so many seconds,"""
SUSPECT_STEPS = 2
"""of which there are so many,"""
SUSPECT_SHARE = 0.08
"""if the others waited for it for so much more of the time than before."""
WAITED_BEFORE_S = 15.0
"""Or one elsewhere, if all ranks here wait for longer than they were seen to do in so much time."""
FASTER = 3
"""Then passes follow each other so many times as fast"""
COMPARED_S = 30.0
"""for so long,"""
COMPARED_PERIOD_S = 120.0
"""and not again before this after they began: two more passes a second for a quarter of the time would cost 0.05% of a
core, in a job that lags more and more."""
COMPARED_PERIOD_MOST_S = 960.0
"""Where that was in vain and comes again and again the period doubles, up to this: the ranks of a job whose steps
differ by a third are compared for 5% of its time then, not for 19% (simulated), and a slow one is named as soon."""

# --- Passes

SLOT_SPREAD_S = 0.2
"""The first slot of a second is so much later at most: regular passes are 0.92 to 1.13 s apart, as other tunables
expect."""
GOLDEN_RATIO = 0.6180339887498949
"""By how much it is later: a part of that, which for no few seconds repeats itself (a low-discrepancy sequence)."""
PASSES_KEPT = 400
"""Passes that are kept: those of the longest window, while they follow each other faster, and some before."""
LONGEST_GAP_S = 1.5
"""A pass stands for no more than this, however long ago the one before it was."""
RECENT_PASSES = 16
"""The last few, by which others wait for a rank that a quota throttles."""

# --- What a Lease says

PACE_WINDOW = 96
"""Waits of so many passes are reported to a controller at most."""
PACE_PASSES = 24
"""And of so many at least."""
PACE_PERIOD_NS = 5 * NS
"""They are counted so often,"""
PACE_COMPARED_NS = NS
"""and so while ranks are compared."""
PACE_APART = 0.05
"""Of the ranks of a gang each waits so much more than the slow one: a hint, by shares that may be half a minute old."""
RANKS_COMPARED = 1024
"""Of a larger gang the controller compares none: where each was at 450 slots takes some 100 KB a rank."""
SHORTEST_AGE_S = 0.001
"""Waits are reported in steps of half a doubling, from this on."""
SLOTS = 450
"""Slots of a third of a second of which a Lease says where the ranks were: two and a half minutes."""
