"""Tunables of certainty: when a job may be ended, and what of a rank explains or accuses; each with unit and reason.

"Chosen" as in `tunables.diagnosis`.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- When a job may be ended

PROVEN_CONFIRMED_S = 3.0
"""Seconds for which a state that no process of the job can end must be confirmed, counted from its beginning: a few
passes."""
SILENCE_FLOOR_S = 2.0
"""Seconds of the shortest silence that is recorded: a shorter one is a step."""
SILENCE_MARGIN = 2.0
"""Factor on the longest silence that a job recovered from: the time it is given. Chosen."""
ACTS_MOVED_S = 5.0
"""Seconds by which the moment at which a job is ended must move until it is reported again. A later one is reported
this long before the one that was reported: time enough to look."""
GIVES_UP_MARGIN_S = 10.0
"""Seconds before the framework gives up by itself at which an inferred fault ends a job at the latest: then all ranks
abort at once, and the evidence must be saved before."""
SILENCES_KEPT = 16
"""Longest silences kept for each place."""
PLACES_REPORTED = 16
"""Places whose silences a report and an incident contain: a few hundred bytes. Jobs have three or four."""
PRIOR_HOURS = 1.0
"""Hours of training that weigh as much as the prior. Chosen: a job with a day of history is given 39 s."""
PRIOR_RATE_PER_H = 45.0
"""Factor of the prior: an unknown job has `PRIOR_RATE_PER_H * L ** -PRIOR_SHAPE` silences an hour longer than L
seconds."""
PRIOR_SHAPE = 2.05
"""Exponent of the prior. Factor and exponent are fitted to the measured phases of lifebench
(`bench/lifebench/prior.py`)."""
SUSPECT_STOPPED_S = 2.0
"""Seconds after which a rank that was stopped alone is named as a suspect; `Policy.stopped_s` makes it a fault."""

# --- The control group

EFFORT_FACTOR = 2.0
"""Factor by which an effort must exceed the rank's usual effort, and the median of the ranks that only wait, to explain
a wait."""
EFFORT_STEP = 1.0
"""The least such excess, in multiples of the smallest effort (`COMPUTE_SHARE`, `STORAGE_RATE`,
`STORAGE_CALLS_RATE`)."""
MENTIONED_RATE = 0.1
"""Multiples of the smallest effort: activity of a waiting rank below this is not mentioned beside the wait graph."""
CERTAIN_RATE = 1e6
"""Value of an effort that needs no comparison, because the lead thread itself waits for it."""
BACKGROUND_CPUS = 0.4
"""CPUs that count as background at most: work that keeps others waiting for seconds uses a good part of one."""
BACKGROUND_FILE_BYTES_S = 1 << 20
"""Bytes a second from and to files that count as background at most: logs are fewer, a checkpoint is more."""
BACKGROUND_INTERVALS = 16
"""Intervals between two totals; their median is the usual effort of a process."""
BACKGROUND_NEEDED = 2
"""Intervals needed before the usual effort counts as known at all."""
BACKGROUND_KNOWN = 8
"""Intervals needed before it is so well known that side threads need to be sampled only rarely: events every few
seconds were seen."""
HABITS_NS = 40 * NS
"""Nanoseconds of healthy training in which side threads are sampled every other pass: three equal waits are a habit."""
EFFORT_INTERVAL_NS = 500_000_000
"""Nanoseconds of the shortest interval whose rates mean anything: threads that wake ten times a second use all their
CPU in bursts."""
EFFORT_INTERVALS = 8
"""Intervals whose rates are kept: more than `EFFORT_WINDOW_NS` needs."""
SIDES_RUN_SHARE = 0.005
"""Share of a CPU above which side threads may keep their program's only lock from its lead thread now and then."""
LONGEST_PROGRAM_NS = 5 * NS
"""Nanoseconds above which a running child may be what its rank waits for, however often one ran during healthy
training: an upload."""
PROGRAMS_KEPT = 64
"""Names of programs remembered that each rank ran during healthy training."""
USUAL_WAIT_NS = 250_000_000
"""Nanoseconds of a side thread's wait: if its rank made progress during it, the rank did not wait for the thread."""
USUAL_WAITS = 3
"""Such waits from which on they are the thread's habit."""
USUAL_SHARE = 0.25
"""Share of the thread's samples in which it must have been found in such a wait."""
USUAL_SPAN_NS = 12 * NS
"""Nanoseconds since the first of them, at least: a thread that backs off lets its rank train until prefetched data is
used up."""
USUAL_UNSEEN_NS = 4 * NS
"""Nanoseconds that a wait may last unseen when passes repeatedly find the thread in the same place."""
USUAL_CALLS_SAMPLES = 8
"""Samples of a thread from which on its usual calls are known: one that sleeps in a call for a third of its time is
found there by one of them in 96 of 100 cases."""
USUAL_FACTOR = 3.0
"""Factor on the longest observed wait that such a wait may last: of three random moments of a wait, the last lies in
its last two thirds in 96 of 100 cases."""
PLACES_KEPT = 16
"""Places remembered in which each child of a rank does timed waits."""
HELPER_SINCE_S = 2.0
"""Seconds: a side thread whose wait began at most this much before its lead thread's may be what the lead waits for."""
SIDES_READ_S = 3.0
"""Seconds by which the accusation of a rank at a lock is delayed while its side threads have not been read, which takes
three passes: an unread thread may own the lock, and a loaded host is slow."""
TIMER_LEFT_NS = 500_000_000
"""Nanoseconds left of a timed wait from which on it is a timer and not a poll."""
TIMER_UNSEEN_NS = 10 * NS
"""Nanoseconds for which an expired timer is accepted while its thread was not sampled since: in long stalls, threads
are sampled every few seconds."""
RETRIES_AFTER_S = 2.0
"""Seconds from the start of a wait to a sleep in it from which on the sleep is one of several: retries, which no timer
ends."""
RESTS_SHARE = 0.8
"""Share of healthy passes in which a rank's lead thread was asleep from which on the rank is a monitor: its sleep
explains nothing."""
RESTS_PASSES = 10
"""Passes needed before that share is known."""
NAPS_KNOWN_PASSES = 8
"""Healthy passes with naps from which on napping is how the rank waits."""
WAIT_EXIT_SLEEPS = 3
"""Sleeps in one pass that show that a thread which waits for a device on a CPU has left its wait. With stubs a rank
sleeps 7 to 40 times a step, and not once in 10 s while its device is hung."""
WAIT_EXIT_SHARE = 0.25
"""Share of the thread's usual rate of sleeps that is needed as well: occasional contention for a lock of the driver is
no step. Chosen."""
WAIT_EXITS_KEPT = 16
"""Passes over which that usual rate is taken."""
SENDERS_EVERY = 3
"""One of this many passes is counted: the pattern of a job does not change from second to second."""
SENDS_ALIKE_SHARE = 0.75
"""Share of passes in which all ranks sent within `SEND_LEAD_NS` from which on the order of sending is evidence. A ring
or an all-to-all behaves like that; a broadcast or a pipeline does not."""
SENDS_ALIKE_PASSES = 8
"""Passes needed before that share is known."""
KILLED_PATIENCE_S = 60.0
"""Seconds after which a launcher that ended a rank will not restart it: torchrun takes 5 to 30 s."""
LEFT_SINCE_S = 2.0
"""Seconds, besides one step, within which after a clean exit a stall must begin to be explained by it."""
RUN_END_S = 30.0
"""Seconds of silence after which a rank is named when most ranks have ended well: it hangs at its exit, or uploads."""
