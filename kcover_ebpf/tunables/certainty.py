"""Tunables of certainty: when a job may be ended, and what of a rank explains or accuses; each with unit and reason.

"Chosen" as in `tunables.diagnosis`.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS
from kcover_ebpf.tunables.diagnosis import EFFORT_WINDOW_NS

# --- When a job may be ended

PROVEN_CONFIRMED_S = 3.0
"""Seconds for which a state that no process of the job can end must be confirmed, counted from its beginning: a few
passes."""
SILENCE_FLOOR_S = 2.0
"""Seconds of the shortest silence that is recorded: a shorter one is a step."""
SILENCE_MARGIN = 2.0
"""Factor on the longest silence that a job recovered from: the time it is given. Chosen."""
GIVES_UP_MARGIN_S = 10.0
"""Seconds before the framework gives up by itself at which an inferred fault ends a job at the latest: then all ranks
abort at once, and the evidence must be saved before."""
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
a wait. The excess must also be an effort by itself (`COMPUTE_SHARE`, `STORAGE_RATE`, `STORAGE_CALLS_RATE`)."""
BACKGROUND_CPUS = 0.4
"""CPUs that count as background at most: work that keeps others waiting for seconds uses a good part of one."""
BACKGROUND_FILE_BYTES_S = 1 << 20
"""Bytes a second from and to files that count as background at most: logs are fewer, a checkpoint is more."""
BACKGROUND_NEEDED = 2
"""Intervals needed before the usual effort counts as known at all."""
KNOWN_PASSES = 8
"""Healthy passes, or intervals, from which on a habit is known: that a rank naps while it waits, that ranks send
together, how much side threads usually work (events every few seconds were seen)."""
HABITS_NS = 40 * NS
"""Nanoseconds of healthy training in which side threads are sampled every other pass: three equal waits are a habit."""
SIDES_RUN_SHARE = 0.005
"""Share of a CPU above which side threads may keep their program's only lock from its lead thread now and then."""
LONGEST_PROGRAM_NS = 5 * NS
"""Nanoseconds above which a running child may be what its rank waits for, however often one ran during healthy
training: an upload."""
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
USUAL_FACTOR = 3.0
"""Factor on the longest observed wait that such a wait may last: of three random moments of a wait, the last lies in
its last two thirds in 96 of 100 cases."""
HELPER_SINCE_S = 2.0
"""Seconds: a side thread whose wait began at most this much before its lead thread's may be what the lead waits for."""
SIDES_READ_S = EFFORT_WINDOW_NS / NS
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
WAIT_EXIT_SLEEPS = 3
"""Sleeps in one pass that show that a thread which waits for a device on a CPU has left its wait. With stubs a rank
sleeps 7 to 40 times a step, and not once in 10 s while its device is hung."""
WAIT_EXIT_SHARE = 0.25
"""Share of the thread's usual rate of sleeps that is needed as well: occasional contention for a lock of the driver is
no step. Chosen."""
SENDS_ALIKE_SHARE = 0.75
"""Share of passes in which all ranks sent within `SEND_LEAD_NS` from which on the order of sending is evidence. A ring
or an all-to-all behaves like that; a broadcast or a pipeline does not."""
KILLED_PATIENCE_S = 60.0
"""Seconds after which a launcher that ended a rank will not restart it: torchrun takes 5 to 30 s."""
LEFT_SINCE_S = 2.0
"""Seconds, besides one step, within which after a clean exit a stall must begin to be explained by it."""
RUN_END_S = 30.0
"""Seconds of silence after which a rank is named when most ranks have ended well: it hangs at its exit, or uploads."""
