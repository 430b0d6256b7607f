"""Tunables of the judge: what it waits for, believes and takes as a sign, with unit, and the measurement or reason.

Set by no option. "Chosen" means that nothing was measured but what halving or doubling it does to the verdicts of
tapes: which job is ended and who is named never depends on it (docs/bench/thresholds.md). A cap on memory stays beside
what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Progress and its cadence

UNLEARNED_STALL_S = 8.0
"""A rank that is silent for so long has stalled, while nothing was learned about its job: longer than a step of
most."""
REMEMBERED_GAPS = 256
"""Gaps of one rank on which its threshold rests: some minutes of steps of a second."""
LEARNED_GAPS = 5
"""Gaps from which on a cadence counts as learned; they must last three times as long as the longest of them, too."""
CLOSER_FLOOR_S = 0.9
"""No shorter silence is watched closely: just under a pass in calm times (`Settings.period_s`), so that one without
progress is enough."""
EACH_PASS_S = 1.5
"""A job whose longest gap is shorter shows progress at every pass, so that one without is unusual."""
UNUSUAL_FACTOR = 1.05
"""A silence of so many times the longest learned gap is watched closely, before it is a stall
(`Policy.stall_factor`)."""
CLOSER_BEFORE_UNLEARNED_S = 3.0
"""A job of which nothing was learned is watched closely for so long before `UNLEARNED_STALL_S` is over: time for
three passes, of which the verdict needs two."""
TRAINING_SIGNS = 8
"""Signs of progress of each rank after which a job trains, even without bytes between its ranks. Chosen."""
BURN_DOUBT_S = 15.0
"""A burn without any other sign counts as a stall for so long after it exceeds the threshold: long enough to ask the
job's own NCCL five times, and short enough that a restarted job that burns from its first step on is seen to have
recovered within 30 s (the threshold is 8 s while nothing was learned)."""
LOST_CLOCK_S = 60.0
"""What counts as a stall until gaps were learned without a clock that was lost: steps of a minute may be left."""
BURN_BEGAN_NS = 2 * NS
"""Bytes of the pass in which a burn began may have come before it."""
LONGEST_BURN_NS = 180 * NS
"""A longer use of a CPU without a pause is no step but many that nothing separates: learned as one gap, it would
hide every stall shorter than 1.5 times the training so far."""
PAYLOAD_RATE_NS = 900_000_000
"""Shortest time over which a rate of payload is taken: a regular pass that came a little early."""
PAYLOAD_RATES_KEPT = 60
"""Passes of which the rate of payload is remembered, to find that a job has slowed down: a minute."""
PAYLOAD_MINUTES_KEPT = 60
"""Minutes of which the median rate is remembered: an hour in which a job has slowed down little by little."""
LEARNED_MINUTES = 3
"""Minutes from which on their median is what the job used to move."""
RECENT_PASSES = 8
"""Passes at their end that count as now."""
NOT_YET_JOINED_S = 5.0
"""A rank that waits for one that has not joined yet made its last sign of progress longer ago than this."""
STANDSTILL_SHARE = 0.05
"""A job that moves on in a minute less often than this share of the median minute of the last hour comes to a
standstill. Chosen."""
STANDSTILL_MINUTES = 5
"""Minutes that have to be like that, one after the other: a single phase without progress is a silence. Chosen."""
KNOWN_MINUTES = 15
"""Minutes from which on their median is known."""
SLOWED_SHARE = 0.6
"""A job that moves less than this share of the payload that it used to move has slowed down. Chosen."""
PAYLOAD_SHARE = 0.1
"""Of what a clock moved in a pass with payload: less is no more than heartbeats."""
NVLINK_FLOOR_BYTES = 1 << 20
"""Bytes of one reading, some two seconds, that are payload. Chosen: not measured on a GPU."""
PCIE_FLOOR_BYTES = 16 << 20
"""Bytes of one reading, some two seconds: a GPU that waits reads its flags in the memory of the host."""
PCIE_SHARE = 0.5
"""As `PAYLOAD_SHARE`, for PCIe: there the reading of flags is a larger part of what is moved. Chosen."""
GPU_CLOCK_LOST_NS = 10_000_000_000
"""Five readings. NVML that answers no more says nothing about the job."""

# --- Threads: what a use of a CPU is for

BUSY_SHARE = 0.5
"""Share of an interval on a CPU (or runnable) above which a thread is burning it."""
MOVE_SHARE = 0.02
"""Share of an interval on a CPU above which a thread moved (the sampler in the kernel uses the same)."""
POLLS_FOR_SPIN = 2
"""Samples that found a burning thread polling, from which on it waits busily; or a fifth of all, where that is more."""
REGISTER_SAMPLES = 16
"""Register samples of a thread that are kept to judge what it burns a CPU for: 4 s while a job is suspicious."""
REGISTER_SAMPLES_NEEDED = 8
"""Samples that must have found it running before that is judged."""
LONGEST_PASS_NS = NS
"""A pass in calm times (`Settings.period_s`): a thread at rest is not sent, so its last sample may be older."""
REGISTERS_CHANGED_NS = 5_000_000
"""Registers are those of the last entry into the kernel: a thread that did not run shows the old ones."""
LOOP_VALUES_SHARE = 0.4
"""Different register values among so many samples, at most: a loop in place repeats them, a computation does not."""
LIBRARY_WAITS_IN_A_ROW = 5
"""Samples in a row that found a thread in the code of a library that waits. One that launches kernels half of the
time is found so once in 32, and then for a moment: the silence of a stall is longer."""
CODE_WORDS_FRESH_NS = 500_000_000
"""Code words that were read later than this after a sample say nothing about it."""
WORK_SIGNS = 8
"""Passes with progress that are remembered; so many since a moment show that a thread works."""
WORK_SHARE = 0.1
"""Share of a CPU over these passes. Heartbeats and stores need a hundredth."""
NAPS_PER_S = 50
"""More voluntary switches a second out of a sleep: it sleeps for milliseconds and asks again."""
NAP_CPU_NS = 100_000
"""CPU between two naps at most: what only polls needs 10 to 50 us, in Python too; more is work between waits."""

# --- Processes: what is an effort

COMPUTE_SHARE = 0.05
"""Share of a CPU of all threads beside the lead, from which on they compute for it."""
SLOWED_BY_QUOTA_SHARE = 0.5
"""Share of the time in which a quota leaves a process without a CPU, above which that is what makes it slow."""
STORAGE_RATE = 16 * 1024
"""Bytes a second from and to storage that are an effort: log lines are fewer, files of a checkpoint more."""
STORAGE_CALLS_RATE = 256 * 1024
"""The same of bytes in read and write calls, which pipes and terminals count to as well."""
PEER_BYTES_FLOOR = 512
"""Bytes between a rank and others in one pass that are never more than heartbeats: two seconds of `PAYLOAD_RATE`."""
FABRIC_FLOOR = 64 * 1024
"""Bytes a second over all ports: connection management and heartbeats need hundreds."""
LEAD_RESTS_NS = 30 * NS
"""A first thread that sleeps for so long while another one works is not the one that trains."""
MOVED_RECENTLY_NS = 1_500_000_000
"""A thread that moved, and slept last, within so long is moving: a pass and a half in calm times."""
EFFORT_WINDOW_NS = 3 * NS
"""An effort that ended longer ago explains no wait: three passes in calm times."""
STORAGE_WINDOW_NS = 6 * NS
"""The same in a storage call: its bytes are charged when it begins."""
THROTTLED_SHARE = 0.9
"""Of the time in which a burning thread wanted a CPU, the part without one from which on it is throttled."""

# --- Waits

FAULTING_BELIEVED_S = 6.0
"""A wait for a page is believed for so long, whatever the steps of the job last: swap answers sooner. Chosen."""
DEVICE_BELIEVED_S = 8.0
"""The same of a call into a driver: resets and allocations of a GPU take seconds. Chosen."""
OTHER_BELIEVED_S = 4.0
"""The same of a call of which nothing is known. Chosen."""
SLEEP_CAP_S = 600.0
"""A timed wait that ends later than this is as good as endless for the ranks that wait for it."""
SOCKET_TICK_NS = 10_000_000
"""The kernel counts the times of a socket in ticks of up to 10 ms."""
OPEN_QUESTION_NS = 1_500_000_000
"""Longer than an answer takes, and than the second between two pushes of telemetry."""
FREEZE_PATIENCE_NS = 2 * NS
"""A file system that is frozen for a snapshot takes writers again before. Chosen."""
STORAGE_ANSWER_NS = 45 * NS
"""Drivers give a request 30 s (SCSI, NVMe) before they abort it, reset the device and try again."""
SERVER_ANSWER_NS = 25 * NS
"""A file server that leaves a probe unanswered for so long answers none: NFS repeats a request after 0.6 to 60 s, and
a fail-over that is meant to go unnoticed takes less."""
PROBE_AFTER_NS = 4 * NS
"""A call into a file system is that old before its server is asked: with the time above it is named after 30 s."""
SAME_STACK_SHARE = 0.6
"""Two stacks are of one wait when so much of them agrees (`similarity`)."""
REMEMBERED_STACKS = 64
"""Waits that ended without help, of one job: those of each kind of step and phase."""
CYCLE_FACTOR = 2.0
"""Ranks that all wait are a circle of waits after so many times what they needed while they were healthy,"""
CYCLE_FLOOR_S = 6.0
"""and no sooner than this: no rank is named by it, so it may take its time."""
LATE_FLOOR_S = 20.0
"""A rank in a wait that often ended, or that only sent before the others did, is late for so long, and then hung. So is
a circle of waits, which a long step resembles."""
DEVICE_WAIT_FACTOR = 2.0
"""Waits for devices last several times what the job needed while it was healthy, as for a circle of waits,"""
DEVICE_WAIT_FLOOR_S = 6.0
"""and no less than this,"""
DEVICE_WAIT_HUNG_S = 60.0
"""It is a suspicion until then: a step of all devices may take so long, whatever the steps before it took;"""
DEVICE_WAIT_UNLEARNED_S = 60.0
"""or this, while no cadence is learned: the first step of a large job, its warm-up included, may well take so long."""
READER_DRAINS_NS = 3 * NS
"""A reader of a full pipe that takes nothing for so long does not read."""
DEVICE_WAIT_OTHERS = 2
"""Ranks whose network threads must all differ from that of the one that is named."""
VICTIM_S = 0.4
"""All other ranks must have waited for the culprit for so long: less is the rest of a step."""
ONESHOT_SILENCE_S = 2.0
"""`trace`: a rank that has waited for so long waits for a reason; most steps are shorter."""
ONESHOT_LONG_WAIT_S = 4.0
"""`trace`: a wait of so long deserves further passes."""
ONESHOT_CONNECTING_S = 8.0
"""`trace`: a process that is this old and only tries to connect takes part in no job yet."""
QUIET_S = 3.0
"""Nothing was sent between ranks for so long: more than most steps last, and one run of `trace` ends nothing."""
UNEXPLAINED_S = 10.0
"""The rank that others wait for is named when all of them have waited for so long, or none has sent anything."""
ASKED_PASSES_KEPT = 24
"""Passes of one run of `trace` in which a thread that polls is remembered,"""
ASKED_PASSES_NEEDED = 8
"""and those that are needed to judge it."""
HELPED_SHARE = 0.05
"""Share of a CPU of the other threads of its process, from which on it may wait for those."""
ASKED_PART = 5
"""A thread that waits busily is found polling at one pass of so many at least, and in no other call."""
GIVES_UP_S = ("libnccl", 600.0), ("libtorch", 1800.0), ("jaxlib", 100.0), ("libjax", 100.0)
"""Seconds after which the framework gives up by itself, by a module on the stacks of its ranks: the defaults of
torch.distributed (NCCL, all other backends) and of jax.distributed's heartbeat."""

# --- Connections

PAYLOAD_RATE = 256
"""Bytes a second, both ways, from which on a connection carries more than heartbeats: twice the largest of them."""
START_UP_BYTES = 64 * 1024
"""What a start-up exchanges over one connection stays below this."""
TRANSFER_RATE = 16 * 1024
"""Bytes a second above which a connection is at work: less is a question, or telemetry."""
STREAM_RATE = 128 * 1024
"""Bytes a second up to which a connection that is always at work is telemetry."""
HABIT_PASSES = 2
"""Passes of training in which a process talked to an address, from which on that is what it always does."""
SEND_LEAD_NS = 60_000_000
"""A rank that sent last so much earlier than all others has not entered what they are in. Kernel ticks of up to 10
ms and scheduling stay below it."""
PAYLOAD_PASSES = 2
"""Passes in which a connection carried payload, before it counts as one of the job's."""
RARELY_FACTOR = 10
"""What carried payload so many times more rarely than the rank's busiest connection is no part of its steps: a new
group is agreed upon, a name is looked up."""
HOST_RARELY_FACTOR = 4
"""An address with which payload was exchanged so many times more rarely than with the busiest is no other rank's: a
store from which shards are read, or to which a checkpoint goes."""

# --- Who belongs to a job

ESTABLISHED_NS = 5 * NS
"""A process that ends younger than this, and has not talked to a rank, took no part in the job."""
STARTER_PASSES = 3
"""Healthy passes with payload between a program and what it started, before it counts as a rank like those: the
exchange of addresses at a start takes one or two."""
STARTER_RESTS_NS = 30 * NS
"""A rank that moved last before this only waits; what it started and moved since then does its work."""
CANDIDATES_PASSES = 8
"""Passes for which the processes that may be ranks are remembered while none comes, goes or is known better: in between
only the names that actors give to themselves may change."""
STARTER_LEARNED_PASSES = 60
"""Healthy passes after which a starter that exchanged no payload is not watched for it any more."""
RANK_SAMPLED_WITHIN_NS = 5 * NS
"""A rank of which no thread was sampled for so long is not seen: a new process is in the next pass."""
START_UP_EFFORT_NS = 2 * NS
"""A rank that made an effort within so long is still starting, and waits for none that is missing."""
ARRIVAL_FACTOR = 10.0
"""A rank is missing after so many times the longest pause between two that came,"""
ARRIVAL_FLOOR_S = 3.0
"""and no sooner: launchers fork their ranks within milliseconds, and interpreters differ by a second."""
ARRIVED_RANKS = 3
"""Ranks of which all but one show how far apart ranks come to the first step."""
ARRIVAL_STALL_FACTOR = 4.0
"""A first step has stalled after so many times the pause between the first and the last of them, and no sooner than
`ARRIVAL_FLOOR_S`: a pass a second sees a pause as a second longer or shorter than it is."""
ARRIVAL_SEEN_NS = 2 * NS
"""A rank that was seen so soon after it began was seen to come: it is found within a pass or two."""
MISSED_REST_NS = 2 * NS
"""After something was missed: two passes at least, so that efforts and silences are those of complete passes."""
BLINDNESS_REPORTED_NS = 10 * NS
"""A blindness that lasts longer is reported (UNKNOWN); before, the last verdict may well still be true."""
PROCESS_SAMPLED_WITHIN_NS = 5 * NS
"""A new process is in the next pass; this long without one means that the sampler does not see it."""

# --- Faults that the kernel or a device announces

HARMLESS_NS = 60 * NS
"""A fault after which the job continues for so long did not end it."""
RELATED_FAULTS_NS = 10 * NS
"""Faults that are so close to each other are reported as one: drivers log several lines about each."""
FAILURE_SETTLE_NS = 300_000_000
"""Time after a first failure in which the other ranks are observed, before it is reported."""
LOSS_FLOOR_S = 0.5
"""The others miss a rank that its launcher ended after so long a silence, at least. Chosen: a step of a quick job."""
LEFT_BEFORE_NS = 10 * NS
"""How long before a failure a rank may have left to be its reason, at least."""
LEFT_BEFORE_STEPS = 1.5
"""The same in longest gaps of the job: its peers notice at their next collective."""
LOADER_MISSED_NS = 10 * NS
"""A rank that still makes progress so long after its loader died does without it: what was prefetched is used up."""
RECOVERED_NS = 3 * NS
"""A failed rank that is there again recovered when its successor still exchanges bytes so long after the failure."""

# --- When a verdict is reported

VERDICT_STABLE_NS = 200_000_000
"""A fault must be found for so long before it is reported: at the closer period, by two passes."""
ORDINARY_STABLE_NS = 1 * NS
"""The same of a start, a training or an end while no fault is open."""
RECOVERY_STABLE_NS = 3 * NS
"""The same of a link that loses packets, a quota, and a recovery: a job may move once and stop again."""

# --- Ranks that lack something

SWAPPING_PER_S = 20.0
"""Major faults a second from which on a slow rank lacks memory. Chosen: loading of libraries is over by then."""
THROTTLED_ALONE_NS = 15 * NS
"""A quota is what slows a job down, once it has kept one rank alone from a CPU most of the time for so long. Chosen:
longer than loading or a checkpoint keeps a quota busy in most jobs,"""
THROTTLED_OTHERS_SHARE = 1 / 3
"""and while the other ranks wait for so much of the time: what they do in a job that is slower by half."""
STARVED_SHARE = 0.5
"""Share of the time without a CPU, though it wanted one, from which on that is what makes a rank slow."""

# --- Suspicion: how closely a job is observed

CALM_AFTER_NS = 30 * NS
"""A suspicion that is older is observed less closely: what lasts changes slowly."""
CALM_UNTRAINED_NS = 12 * NS
"""A job that never trained: its start, or none at all. The first verdicts come after 8 s of silence."""
READING_PERIOD_NS = 200_000_000
"""Shortest pause between two readings of one thread: every pass of a suspicious job."""
READING_EASE_NS = 80 * NS
"""The pause is the square of the wait's age divided by this: 0.8 s at 8 s, 5 s at 20 s,"""
READING_LONGEST_NS = 20 * NS
"""and never longer: from an age of 40 s on."""
READING_UNTRAINED_NS = 900_000_000
"""Pause before a further reading of a wait of a job that never trained: one a pass."""
READINGS_REPEATED = 4
"""Further readings in one pass (0.14 ms each) of threads that wait in one state and call: what a second one shows
of one of them it shows of all, and each has its turn,"""
READINGS_REPEATED_CALMLY = 1
"""while the sampler does not go fast."""
UNTRAINED_EASE_PART = 6
"""A job that never trained and is only silent cannot be judged before 8 s, and changes slowly afterwards: the pause
between two passes becomes this part of the age of that suspicion,"""
UNTRAINED_MOST_EASE = 3.0
"""and at most so many regular ones: no window of the judgement is shorter."""
READING_PROOF_NS = 10 * NS
"""No turn takes longer, and readings of a thread in an uninterruptible sleep get no rarer until it has lasted ten
times as long: how long its storage completed nothing is seen from the first of them to the last."""
BASELINE_EAGER_WAITS = 10
"""Healthy waits are learned at every pass until so many are known,"""
BASELINE_EAGER_NS = 60 * NS
"""or for so long,"""
BASELINE_PERIOD_NS = 10 * NS
"""and from then on so rarely,"""
BASELINE_READINGS = 2
"""so many threads at a time."""
CODE_PERIODS_NS = 2 * NS, 30 * NS
"""Shortest and longest pause before mappings are read anew: libraries are loaded while a program is young, code made
at run time never has a name."""
BUSY_THREADS = 4
"""Threads of a process whose stacks are read in one pass: NCCL's network threads are one a communicator."""


# --- One rank that computes, and counts that move

LONE_FACTOR = 2.0
"""A rank that computes while all others wait is named after so many times the longest stall threshold, which is itself
1.5 times the longest healthy silence."""
LONE_FLOOR_S = 60.0
"""And never before: loading, compiling and metrics on one rank are over within a minute in most jobs, and so are
answers of services and helpers, for which a rank is named then too. Chosen; on tapes
whose rank 0 computes for 20 to 240 s every 5 to 10 minutes it was named 2 to 4 times an hour."""
INERT_S = 8.0
"""Nor before this where that rank did nothing else but to burn a CPU: work of ranks makes calls now and then. Two
passes later, after 10 s, it is reported."""
GAVE_UP_S = 15.0
"""A rank that fails by itself after it and all others waited so long for one rank, and longer than a stall of this job
takes, gave up waiting. Chosen: collectives have time-outs of minutes, and few jobs have steps of this length, in which
who waits is noted every few passes (2 ms for 8 ranks)."""
GAVE_UP_SEEN_NS = 15 * NS
"""Who waited counts for so long until a rank failed, unless bytes came meanwhile: passes that judge are up to 3 s
apart, and a program that raises takes seconds to end on a busy host."""
COUNTS_MOVE_S = 120.0
"""For so long an answer of NCCL in which counts moved refutes a hang that began before it. Chosen."""
LAUNCHED_AHEAD_S = 5.0
"""Ranks launch what they can before they wait for one that is stuck. Chosen."""
