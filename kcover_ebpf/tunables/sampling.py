"""Tunables of sampling: how closely a job is observed, how fresh samples are, what is kept and reported; with reasons.

They say when and how much is seen and reported, and not what follows from it. `bench/tapebench/thresholds` shows what
each changes.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Before a suspicion

CLOSER_FLOOR_S = 0.9
"""Seconds below which no silence is watched closely: just under a pass in calm times (`Settings.period_s`), so that one
pass without progress is enough."""
EACH_PASS_S = 1.5
"""Seconds: a job whose longest gap is shorter shows progress at every pass, so that one pass without it is unusual."""
UNUSUAL_FACTOR = 1.05
"""Factor on the longest learned gap: a longer silence is watched closely, before it is a stall
(`Policy.stall_factor`)."""
CLOSER_BEFORE_UNLEARNED_S = 3.0
"""Seconds before `UNLEARNED_STALL_S` is over from which on an unlearned job is watched closely: time for three passes,
of which the verdict needs two."""

# --- Suspicion: how closely a job is observed

CALM_AFTER_NS = 30 * NS
"""Nanoseconds of age from which on a suspicion is observed less closely: what lasts changes slowly."""
CALM_UNTRAINED_NS = 12 * NS
"""As `CALM_AFTER_NS`, for a job that never trained: it starts, or is none at all. The first verdicts come after 8 s of
silence."""
READING_PERIOD_NS = 200_000_000
"""Nanoseconds between two readings of one thread, at least: every pass of a suspicious job."""
READING_EASE_NS = 80 * NS
"""Nanoseconds. The pause between two readings of a wait is the square of its age divided by this: 0.8 s at 8 s, 5 s at
20 s."""
READING_LONGEST_NS = 20 * NS
"""Nanoseconds of the longest such pause: from an age of 40 s on."""
READING_UNTRAINED_NS = 900_000_000
"""Nanoseconds between two readings of a wait in a job that never trained: one a pass."""
READINGS_REPEATED = 4
"""Further readings in one pass (0.14 ms each) of threads that wait in the same state and call. They take turns, and
what a second reading shows of one it shows of all."""
READINGS_REPEATED_CALMLY = 1
"""As `READINGS_REPEATED`, while the sampler runs at its regular period."""
UNTRAINED_EASE_PART = 6
"""A job that never trained and is only silent cannot be judged before 8 s, and changes slowly afterwards. The pause
between two passes is the age of that suspicion divided by this."""
UNTRAINED_MOST_EASE = 3.0
"""Regular periods in the longest such pause: no window of the judgement is shorter."""
READING_PROOF_NS = 10 * NS
"""Nanoseconds between two readings of an uninterruptible sleep, at most, until it has lasted ten times as long; then a
tenth of its age. How long its storage completed nothing is measured from the first of these readings to the last."""
BASELINE_EAGER_WAITS = 10
"""Healthy waits that are learned at every pass before they are learned more rarely."""
BASELINE_EAGER_NS = 60 * NS
"""Nanoseconds for which healthy waits are learned at every pass."""
BASELINE_PERIOD_NS = 10 * NS
"""Nanoseconds between two such readings afterwards."""
BASELINE_READINGS = 2
"""Threads read at a time to learn healthy waits."""
CODE_PERIODS_NS = 2 * NS, 30 * NS
"""Nanoseconds, shortest and longest pause before mappings are read again: libraries are loaded while a program is
young, and code made at run time never has a name."""
BUSY_THREADS = 4
"""Threads of a process whose stacks are read in one pass: NCCL has one network thread per communicator."""

# --- Samples and their age

LONGEST_PASS_NS = NS
"""Nanoseconds of a pass in calm times (`Settings.period_s`): a thread at rest is not sent, so its last sample may be
older."""
CODE_WORDS_FRESH_NS = 500_000_000
"""Nanoseconds after a sample within which code words must be read to belong to it."""
REGISTERS_CHANGED_NS = 5_000_000
"""Nanoseconds. Registers are those of the last entry into the kernel: a thread that did not run shows the old ones."""
EFFORT_INTERVAL_NS = 500_000_000
"""Nanoseconds of the shortest interval whose rates mean anything: threads that wake ten times a second use all their
CPU in bursts."""
PAYLOAD_RATE_NS = 900_000_000
"""Nanoseconds of the shortest interval over which a rate of payload is taken: a regular pass that came a little
early."""
SENDERS_EVERY = 3
"""One of this many passes is counted: the pattern of a job does not change from second to second."""
CANDIDATES_PASSES = 8
"""Passes for which the processes that may be ranks are cached while none starts, ends or is identified: only the names
that actors give themselves may change meanwhile."""
STARTER_LEARNED_PASSES = 60
"""Healthy passes after which a starter that exchanged no payload is no longer examined for it."""

# --- How much is remembered

REMEMBERED_GAPS = 256
"""Gaps of one rank that its threshold is computed from: some minutes of steps of a second."""
PAYLOAD_RATES_KEPT = 60
"""Passes whose rate of payload is remembered, to detect that a job has slowed down: a minute."""
PAYLOAD_MINUTES_KEPT = 60
"""Minutes whose median rate is remembered: an hour, to detect that a job slowed down little by little."""
REGISTER_SAMPLES = 16
"""Register samples of a thread that are kept to judge what it uses a CPU for: 4 s while a job is suspicious."""
REMEMBERED_STACKS = 64
"""Waits of one job remembered as having ended by themselves: those of each kind of step and phase."""
PLACES_REPORTED = 16
"""Places whose silences a report and an incident contain: a few hundred bytes. Jobs have three or four."""
SILENCES_KEPT = 16
"""Longest silences kept for each place, of a job."""
BACKGROUND_INTERVALS = 16
"""Intervals between two totals; their median is the usual effort of a process."""
EFFORT_INTERVALS = 8
"""Intervals whose rates are kept: more than `EFFORT_WINDOW_NS` needs."""
PROGRAMS_KEPT = 64
"""Names of programs remembered that each rank ran during healthy training."""
PLACES_KEPT = 16
"""Places remembered in which each child of a rank does timed waits."""
WAIT_EXITS_KEPT = 16
"""Passes over which the usual rate of sleeps of a thread is taken (`WAIT_EXIT_SHARE`)."""

# --- What is reported of it

ACTS_MOVED_S = 5.0
"""Seconds by which the moment at which a job is ended must move until it is reported again. A later one is reported
this long before the one that was reported: time enough to look."""
MENTIONED_RATE = 0.1
"""Multiples of the smallest effort: activity of a waiting rank below this is not mentioned beside the wait graph."""
SOCKETS_REPORTED = 64
"""Connections of one rank in a report, at most. A rank of a large job has hundreds; relevant ones come first."""
