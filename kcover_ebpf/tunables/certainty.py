"""Tunables of certainty: when a job may be ended, and what of a rank explains or accuses; each with unit and reason.

"Chosen" as in `tunables.diagnosis`.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- When a job may be ended

PROVEN_CONFIRMED_S = 3.0
"""What no process of the job can end is confirmed for so long, since it began: a few passes."""
SILENCE_FLOOR_S = 2.0
"""No shorter silence is recorded: it is a step."""
SILENCE_MARGIN = 2.0
"""A job is given so many times the longest silence that it recovered from. Chosen."""
SILENCES_KEPT = 16
"""Longest silences kept of each place."""
PRIOR_HOURS = 1.0
"""Hours of training that weigh as much as the prior. Chosen: a job with a day of history is given 39 s."""
PRIOR_RATE_PER_H = 45.0
"""Silences longer than L seconds an hour of which nothing is known: this, times L to the power of `-PRIOR_SHAPE`;"""
PRIOR_SHAPE = 2.05
"""both fitted to the measured phases of the library of life (`bench/lifebench/prior.py`)."""
SUSPECT_STOPPED_S = 2.0
"""A rank that was stopped alone for so long is named as a suspect, before `Policy.stopped_s` makes it a fault."""

# --- The control group

EFFORT_FACTOR = 2.0
"""An effort explains a wait if it is more than so many times what the rank always does, and than the median of the
ranks that only wait,"""
EFFORT_STEP = 1.0
"""and by so many times the smallest effort (`COMPUTE_SHARE`, `STORAGE_RATE`, `STORAGE_CALLS_RATE`) at least."""
CERTAIN_RATE = 1e6
"""Of an effort that needs no comparison: it is what the lead waits for itself."""
BACKGROUND_CPUS = 0.4
"""Never more of a CPU is taken for background: work that lets others wait for seconds burns a good part of one."""
BACKGROUND_FILE_BYTES_S = 1 << 20
"""Nor more bytes a second from and to files: logs are fewer, a checkpoint is more."""
BACKGROUND_INTERVALS = 16
"""Intervals between two totals whose median is what a process always does."""
BACKGROUND_NEEDED = 2
"""Of these, before anything is known of it,"""
BACKGROUND_KNOWN = 8
"""and before it is known so well that side threads are seen seldom: what happens once in some seconds is seen."""
HABITS_NS = 40 * NS
"""For so long of healthy training side threads are seen every other pass: three of their waits are a habit."""
EFFORT_INTERVAL_NS = 500_000_000
"""Shortest interval whose rates say anything: threads that wake ten times a second burn all of their CPU at once."""
EFFORT_INTERVALS = 8
"""Such intervals of which the rates are kept: more than `EFFORT_WINDOW_NS` takes."""
SIDES_RUN_SHARE = 0.005
"""Of a CPU: side threads that use more may keep their program's only lock from its lead now and then."""
LONGEST_PROGRAM_NS = 5 * NS
"""A child that runs for longer may be waited for, however often one did so beside healthy training: an upload."""
PROGRAMS_KEPT = 64
"""Names of programs that each rank ran beside healthy training."""
USUAL_WAIT_NS = 250_000_000
"""A side thread that had waited for so long when its rank moved on kept it from nothing."""
USUAL_WAITS = 3
"""Such waits, from which on they are its habit,"""
USUAL_SHARE = 0.25
"""and of the places that it was seen in,"""
USUAL_SPAN_NS = 12 * NS
"""and since the first of them: a thread that backs off lets its rank train until what it fetched before is used up."""
USUAL_UNSEEN_NS = 4 * NS
"""What is found at rest in one place, pass after pass, may have waited for so long at a time."""
USUAL_FACTOR = 3.0
"""Such a wait may last so many times the longest that was seen: of three moments of one the last is in its last two
thirds in 96 of 100 cases."""
PLACES_KEPT = 16
"""Places in which each child of a rank waits until a time."""
HELPER_SINCE_S = 2.0
"""A side thread that began to wait so long before its lead, or later, may be who the lead waits for."""
SIDES_READ_S = 3.0
"""A rank at a lock is blamed so much later while its side threads have not been read, which takes three passes: what is
not seen may be there, and a loaded host is slow."""
TIMER_LEFT_NS = 500_000_000
"""A timed wait that has so long to go is a timer, and no poll."""
TIMER_UNSEEN_NS = 10 * NS
"""A timer that ended is believed for so long while its thread has not been seen since: in long stalls threads are
visited every few seconds."""
RETRIES_AFTER_S = 2.0
"""A sleep that began so long after its wait is one of several: no timer ends what is tried again and again."""
RESTS_SHARE = 0.8
"""A rank whose lead was found in a sleep in so many of its healthy passes is a monitor: that it sleeps explains
nothing."""
RESTS_PASSES = 10
"""Passes after which that is known."""
NAPS_KNOWN_PASSES = 8
"""Healthy passes in which a rank napped, from which on that is its way to wait."""
WAIT_EXIT_SLEEPS = 3
"""A thread that waits for a device on a CPU has left its wait in a pass in which it slept so often. With stubs a rank
sleeps 7 to 40 times a step, and not once in 10 s in which its device is hung."""
WAIT_EXIT_SHARE = 0.25
"""And at least at this share of its usual rate: what contends for a lock of the driver's now and then is no step.
Chosen."""
WAIT_EXITS_KEPT = 16
"""Passes on which that rate rests."""
SENDERS_EVERY = 3
"""Passes of which one counts: the pattern of a job does not change from second to second."""
SENDS_ALIKE_SHARE = 0.75
"""Passes in which all ranks had sent within `SEND_LEAD_NS`, from which on the order of sending is evidence: so it is
in a ring or an all-to-all; a broadcast or a pipeline has other patterns."""
SENDS_ALIKE_PASSES = 8
"""Passes after which that is known."""
KILLED_PATIENCE_S = 60.0
"""A launcher that ended a rank has started it again before, or does not mean to: torchrun takes 5 to 30 s."""
LEFT_SINCE_S = 2.0
"""A clean exit explains a stall that began at most a step and this after it."""
RUN_END_S = 30.0
"""Where most ranks have ended well, one that is silent for so long is named: it hangs at its exit, or uploads."""
