"""Tunables of the judge: what it waits for, believes and takes as a sign, with unit, and the measurement or reason.

No option sets them. "Chosen" means that only the effect of halving or doubling the value on the verdicts of tapes was
measured: which job is ended and who is named never depends on it (docs/bench/thresholds.md). A cap on memory is defined
next to what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Progress and its cadence

UNLEARNED_STALL_S = 8.0
"""Seconds of silence after which a rank has stalled while nothing was learned about its job: longer than a step of most
jobs."""
REMEMBERED_GAPS = 256
"""Gaps of one rank that its threshold is computed from: some minutes of steps of a second."""
LEARNED_GAPS = 5
"""Gaps from which on a cadence counts as learned. Together they must also last three times as long as the longest of
them."""
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
TRAINING_SIGNS = 8
"""Signs of progress of each rank after which a job counts as training, even without bytes between its ranks. Chosen."""
BURN_DOUBT_S = 15.0
"""Seconds beyond the threshold after which a burn without any other sign counts as a stall: enough to ask the job's own
NCCL five times. A restarted job that burns from its first step on is still seen to have recovered within 30 s (the
threshold is 8 s while nothing was learned)."""
LOST_CLOCK_S = 60.0
"""Seconds of silence that count as a stall after a clock was lost and until gaps were learned without it: steps of a
minute may be left."""
BURN_BEGAN_NS = 2 * NS
"""Nanoseconds: bytes of the pass in which a burn began may have come before it."""
LONGEST_BURN_NS = 180 * NS
"""Nanoseconds of the longest use of a CPU that counts as one step. A longer one is many steps that nothing separates:
learned as one gap, it would hide every stall shorter than 1.5 times the training so far."""
PAYLOAD_RATE_NS = 900_000_000
"""Nanoseconds of the shortest interval over which a rate of payload is taken: a regular pass that came a little
early."""
PAYLOAD_RATES_KEPT = 60
"""Passes whose rate of payload is remembered, to detect that a job has slowed down: a minute."""
PAYLOAD_MINUTES_KEPT = 60
"""Minutes whose median rate is remembered: an hour, to detect that a job slowed down little by little."""
LEARNED_MINUTES = 3
"""Minutes after which their median is the job's usual rate."""
RECENT_PASSES = 8
"""Passes, the newest ones, that count as the present."""
NOT_YET_JOINED_S = 5.0
"""Seconds since its last sign of progress that a rank needs to count as waiting for one that has not joined yet."""
STANDSTILL_SHARE = 0.05
"""Share of the median rate of progress in the last hour: a job below it in a minute makes hardly any progress.
Chosen."""
STANDSTILL_MINUTES = 5
"""Minutes in a row below that share after which the job has come to a standstill. A single phase without progress is a
silence. Chosen."""
KNOWN_MINUTES = 15
"""Minutes after which the median rate of progress is known."""
SLOWED_SHARE = 0.6
"""Share of its usual payload below which a job has slowed down. Chosen."""
PAYLOAD_SHARE = 0.1
"""Share of a clock's usual bytes in a pass with payload: less is no more than heartbeats."""
NVLINK_FLOOR_BYTES = 1 << 20
"""Bytes over NVLink in one reading (some two seconds) from which on they are payload. Chosen: not measured on a GPU."""
PCIE_FLOOR_BYTES = 16 << 20
"""Bytes over PCIe in one reading (some two seconds) from which on they are payload: a GPU that waits reads its flags in
host memory."""
PCIE_SHARE = 0.5
"""As `PAYLOAD_SHARE`, for PCIe: there, reading flags is a larger part of all traffic. Chosen."""
GPU_CLOCK_LOST_NS = 10_000_000_000
"""Nanoseconds without a reading after which a GPU clock is lost: five readings. NVML that stopped answering says
nothing about the job."""

# --- Threads: what a use of a CPU is for

BUSY_SHARE = 0.5
"""Share of an interval on a CPU (or runnable) above which a thread is burning it."""
MOVE_SHARE = 0.02
"""Share of an interval on a CPU above which a thread moved (the sampler in the kernel uses the same)."""
POLLS_FOR_SPIN = 2
"""Samples that must find a burning thread polling before it counts as waiting busily; or a fifth of all, if that is
more."""
REGISTER_SAMPLES = 16
"""Register samples of a thread that are kept to judge what it uses a CPU for: 4 s while a job is suspicious."""
REGISTER_SAMPLES_NEEDED = 8
"""Samples that must have found the thread running before that is judged."""
LONGEST_PASS_NS = NS
"""Nanoseconds of a pass in calm times (`Settings.period_s`): a thread at rest is not sent, so its last sample may be
older."""
REGISTERS_CHANGED_NS = 5_000_000
"""Nanoseconds. Registers are those of the last entry into the kernel: a thread that did not run shows the old ones."""
LOOP_VALUES_SHARE = 0.4
"""Share of different values among the register samples, at most: a loop in place repeats them, a computation does
not."""
LIBRARY_WAITS_IN_A_ROW = 5
"""Samples in a row that found a thread in the code of a library that waits. A thread that launches kernels half of the
time is found like this once in 32, and then for a moment: the silence of a stall is longer."""
CODE_WORDS_FRESH_NS = 500_000_000
"""Nanoseconds after a sample within which code words must be read to belong to it."""
WORK_SIGNS = 8
"""Passes with progress that are remembered. This number of them since a given moment shows that a thread works."""
WORK_SHARE = 0.1
"""Share of a CPU over these passes that work needs. Heartbeats and stores need a hundredth."""
NAPS_PER_S = 50
"""Voluntary context switches a second of a sleeping thread from which on it polls: it sleeps for milliseconds and
checks again."""
NAP_CPU_NS = 100_000
"""Nanoseconds of CPU between two naps, at most: pure polling needs 10 to 50 us, in Python too; more is work between
waits."""

# --- Processes: what is an effort

COMPUTE_SHARE = 0.05
"""Share of a CPU used by all threads except the lead from which on they compute for it."""
SLOWED_BY_QUOTA_SHARE = 0.5
"""Share of the time in which a quota keeps a process off the CPU from which on the quota is what makes it slow."""
STORAGE_RATE = 16 * 1024
"""Bytes a second from and to storage from which on they are an effort: log lines are fewer, files of a checkpoint
more."""
STORAGE_CALLS_RATE = 256 * 1024
"""Bytes a second in read and write calls from which on they are an effort; pipes and terminals count as well."""
PEER_BYTES_FLOOR = 512
"""Bytes between a rank and others in one pass that are never more than heartbeats: two seconds of `PAYLOAD_RATE`."""
FABRIC_FLOOR = 64 * 1024
"""Bytes a second over all RDMA ports from which on they are payload: connection management and heartbeats need
hundreds."""
LEAD_RESTS_NS = 30 * NS
"""Nanoseconds of sleep after which a first thread, while another one works, is not the one that trains."""
MOVED_RECENTLY_NS = 1_500_000_000
"""Nanoseconds since it last moved or slept within which a thread counts as moving: a pass and a half in calm times."""
EFFORT_WINDOW_NS = 3 * NS
"""Nanoseconds after its end for which an effort still explains a wait: three passes in calm times."""
STORAGE_WINDOW_NS = 6 * NS
"""As `EFFORT_WINDOW_NS`, for a storage call: its bytes are charged when it begins."""
THROTTLED_SHARE = 0.9
"""Share of the time in which a burning thread wanted a CPU and had none from which on it is throttled."""

# --- Waits

FAULTING_BELIEVED_S = 6.0
"""Seconds for which a wait for a page is accepted, whatever this job's step time: swap answers sooner. Chosen."""
DEVICE_BELIEVED_S = 8.0
"""Seconds for which a call into a driver is accepted, whatever this job's step time: resets and allocations of a GPU
take seconds. Chosen."""
OTHER_BELIEVED_S = 4.0
"""Seconds for which a call of an unknown kind is accepted, whatever this job's step time. Chosen."""
SLEEP_CAP_S = 600.0
"""Seconds left of a timed wait above which it is as good as endless for the ranks that wait for it."""
SOCKET_TICK_NS = 10_000_000
"""Nanoseconds of the longest tick in which the kernel counts the times of a socket."""
OPEN_QUESTION_NS = 1_500_000_000
"""Nanoseconds: longer than an answer takes, and than the second between two pushes of telemetry."""
FREEZE_PATIENCE_NS = 2 * NS
"""Nanoseconds within which a file system that is frozen for a snapshot accepts writers again. Chosen."""
STORAGE_ANSWER_NS = 45 * NS
"""Nanoseconds within which storage answers: drivers give a request 30 s (SCSI, NVMe) before they abort it, reset the
device and try again."""
SERVER_ANSWER_NS = 25 * NS
"""Nanoseconds without an answer to a probe after which a file server is dead: NFS repeats a request after 0.6 to 60 s,
and a fail-over that is meant to be unnoticed takes less."""
PROBE_AFTER_NS = 4 * NS
"""Nanoseconds of a call into a file system after which its server is probed. With `SERVER_ANSWER_NS` it is named after
30 s."""
SAME_STACK_SHARE = 0.6
"""Share of two stacks that must agree for them to be the same wait (`similarity`)."""
REMEMBERED_STACKS = 64
"""Waits of one job remembered as having ended by themselves: those of each kind of step and phase."""
CYCLE_FACTOR = 2.0
"""Factor on the longest wait of healthy times after which ranks that all wait form a circle of waits."""
CYCLE_FLOOR_S = 6.0
"""Seconds before which no circle of waits is reported: no rank is named by it, so it may take its time."""
LATE_FLOOR_S = 20.0
"""Seconds for which a rank counts as late, and after which it counts as hung, if its wait often ended by itself or it
only sent before the others did. A circle of waits is confirmed after this time too, because a long step resembles
one."""
DEVICE_WAIT_FACTOR = 2.0
"""Factor on the longest wait of healthy times after which waits for devices are a stall, as for a circle of waits."""
DEVICE_WAIT_FLOOR_S = 6.0
"""Seconds before which waits for devices are no stall."""
DEVICE_WAIT_HUNG_S = 60.0
"""Seconds up to which waits for devices are only a suspicion: one step of all devices may take this long, whatever the
steps before it took."""
DEVICE_WAIT_UNLEARNED_S = 60.0
"""Seconds up to which they are a suspicion while no cadence is learned: the first step of a large job, with its
warm-up, may well take this long."""
READER_DRAINS_NS = 3 * NS
"""Nanoseconds without a read after which the reader of a full pipe or socket does not read. Before, its
writer moves."""
DEVICE_WAIT_OTHERS = 2
"""Ranks whose network threads must all differ from those of the rank that is named."""
VICTIM_S = 0.4
"""Seconds for which all other ranks must have waited for the culprit: less is the rest of a step."""
ONESHOT_SILENCE_S = 2.0
"""`trace`: seconds of a wait from which on it has a reason; most steps are shorter."""
ONESHOT_LONG_WAIT_S = 4.0
"""`trace`: seconds of a wait from which on further passes are made."""
ONESHOT_CONNECTING_S = 8.0
"""`trace`: seconds of age up to which a process that only tries to connect takes part in no job yet."""
QUIET_S = 3.0
"""Seconds without bytes between ranks after which a job is silent: more than most steps last, and one run of `trace`
ends nothing."""
UNEXPLAINED_S = 10.0
"""Seconds for which all ranks must have waited, or sent nothing, before the rank that they wait for is named."""
ASKED_PASSES_KEPT = 24
"""`trace`: passes for which a polling thread is remembered."""
ASKED_PASSES_NEEDED = 8
"""`trace`: passes needed to judge a polling thread."""
HELPED_SHARE = 0.05
"""Share of a CPU used by the other threads of its process from which on a thread may wait for those."""
ASKED_PART = 5
"""`trace`: a thread that waits busily is found polling at one in this many passes at least, and in no other call."""
GIVES_UP_S = ("libnccl", 600.0), ("libtorch", 1800.0), ("jaxlib", 100.0), ("libjax", 100.0)
"""Seconds after which a framework gives up by itself, keyed by a module on the stacks of its ranks: the defaults of
torch.distributed (NCCL, all other backends) and of jax.distributed's heartbeat."""

# --- Connections

PAYLOAD_RATE = 256
"""Bytes a second, both directions together, from which on a connection carries more than heartbeats: twice the largest
of them."""
START_UP_BYTES = 64 * 1024
"""Bytes over one connection that a start-up exchange stays below."""
TRANSFER_RATE = 16 * 1024
"""Bytes a second above which a connection is at work: less is a request, or telemetry."""
STREAM_RATE = 128 * 1024
"""Bytes a second up to which a connection that is always at work is telemetry."""
HABIT_PASSES = 2
"""Passes of training in which a process exchanged bytes with an address from which on it does so habitually."""
SEND_LEAD_NS = 60_000_000
"""Nanoseconds: a rank whose last send is this much earlier than that of all others has not entered their collective.
Kernel ticks of up to 10 ms and scheduling stay below it."""
PAYLOAD_PASSES = 2
"""Passes with payload before a connection counts as one of the job's."""
RARELY_FACTOR = 10
"""Factor: a connection that carried payload this many times more rarely than the rank's busiest one is not part of its
steps: a new group is agreed upon, a name is looked up."""
HOST_RARELY_FACTOR = 4
"""Factor: an address with payload this many times more rarely than the busiest one belongs to no other rank: a store
from which shards are read, or to which a checkpoint is written."""

# --- Who belongs to a job

ESTABLISHED_NS = 5 * NS
"""Nanoseconds of age: a process that ends younger, and has exchanged nothing with a rank, took no part in the job."""
STARTER_PASSES = 3
"""Healthy passes with payload between a program and what it started before the program counts as a rank too: the
exchange of addresses at a start takes one or two."""
STARTER_RESTS_NS = 30 * NS
"""Nanoseconds without movement after which a rank only waits, and the processes that it started, which moved since, do
its work."""
CANDIDATES_PASSES = 8
"""Passes for which the processes that may be ranks are cached while none starts, ends or is identified: only the names
that actors give themselves may change meanwhile."""
STARTER_LEARNED_PASSES = 60
"""Healthy passes after which a starter that exchanged no payload is no longer examined for it."""
RANK_SAMPLED_WITHIN_NS = 5 * NS
"""Nanoseconds without a sample of any thread after which a rank is unobserved: a new process is in the next pass."""
START_UP_EFFORT_NS = 2 * NS
"""Nanoseconds since its last effort within which a rank is still starting, and waits for no missing one."""
ARRIVAL_FACTOR = 10.0
"""Factor on the longest pause between two arrivals of ranks after which a further rank is missing."""
ARRIVAL_FLOOR_S = 3.0
"""Seconds before which none is missing: launchers fork their ranks within milliseconds, and interpreters differ by a
second."""
ARRIVED_RANKS = 3
"""Ranks needed: all but one of them show how far apart ranks arrive at the first step."""
ARRIVAL_STALL_FACTOR = 4.0
"""Factor on the pause between the first and the last arrival after which a first step has stalled, and no sooner than
`ARRIVAL_FLOOR_S`: at one pass a second, a pause is measured up to a second too long or too short."""
ARRIVAL_SEEN_NS = 2 * NS
"""Nanoseconds after its start within which a rank must be sampled for its arrival to count as observed: it is found
within a pass or two."""
MISSED_REST_NS = 2 * NS
"""Nanoseconds after lost records before efforts and silences are used again: two passes, so that those are of complete
passes."""
BLINDNESS_REPORTED_NS = 10 * NS
"""Nanoseconds after which a lasting blindness is reported (UNKNOWN). Before, the last verdict may well still be
true."""
PROCESS_SAMPLED_WITHIN_NS = 5 * NS
"""Nanoseconds without a sample after which the sampler does not see a new process: normally it is in the next pass."""

# --- Faults that the kernel or a device announces

HARMLESS_NS = 60 * NS
"""Nanoseconds that a job must continue after a fault for it to be harmless."""
RELATED_FAULTS_NS = 10 * NS
"""Nanoseconds within which faults are reported as one: drivers log several lines about each."""
FAILURE_SETTLE_NS = 300_000_000
"""Nanoseconds after a first failure for which the other ranks are observed before it is reported."""
LOSS_FLOOR_S = 0.5
"""Seconds of the others' silence, at least, before they count as missing a rank that its launcher ended. Chosen: a step
of a quick job."""
LEFT_BEFORE_NS = 10 * NS
"""Nanoseconds before a failure within which a rank may have left to be its reason, at least."""
LEFT_BEFORE_STEPS = 1.5
"""Factor on the job's longest gap, an alternative to `LEFT_BEFORE_NS`: peers notice at their next collective."""
LOADER_MISSED_NS = 10 * NS
"""Nanoseconds of progress after its loader died that show that a rank does without it: prefetched data is used up by
then."""
RECOVERED_NS = 3 * NS
"""Nanoseconds after a failure: a failed rank has recovered if its successor still exchanges bytes then."""

# --- When a verdict is reported

VERDICT_STABLE_NS = 200_000_000
"""Nanoseconds for which a fault must be found before it is reported: two passes at the closer period."""
ORDINARY_STABLE_NS = 1 * NS
"""Nanoseconds for which a start, a training or an end must be found while no fault is open."""
RECOVERY_STABLE_NS = 3 * NS
"""Nanoseconds for which a lossy link, a quota or a recovery must be found: a job may move once and stop again."""

# --- Ranks that lack something

SWAPPING_PER_S = 20.0
"""Major faults a second from which on a slow rank lacks memory. Chosen: loading of libraries is over by then."""
THROTTLED_ALONE_NS = 15 * NS
"""Nanoseconds for which a quota must have kept one rank alone off the CPU most of the time to be what slows the job
down. Chosen: longer than loading or a checkpoint exhausts a quota in most jobs."""
THROTTLED_OTHERS_SHARE = 1 / 3
"""Share of that time for which the other ranks must wait: as in a job that is slower by half."""
STARVED_SHARE = 0.5
"""Share of the time without a CPU, though it wanted one, from which on that is what makes a rank slow."""

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


# --- One rank that computes, and counts that move

LONE_FACTOR = 2.0
"""Factor on the longest stall threshold (1.5 times the longest healthy silence) after which a rank that computes while
all others wait is named."""
LONE_FLOOR_S = 60.0
"""Seconds before which it is never named: loading, compiling and metrics on one rank are over within a minute in most
jobs. So are answers of services and helpers, for which a rank is named then too. Chosen; on tapes whose rank 0 computes
for 20 to 240 s every 5 to 10 minutes it was named 2 to 4 times an hour."""
INERT_S = 8.0
"""Seconds before which it is not named even if it does nothing except use a CPU: work makes calls now and then. Two
passes later, after 10 s, it is reported."""
GAVE_UP_S = 15.0
"""Seconds. If a rank fails after every rank has waited at least this long (and longer than this job's stall threshold)
for one peer, it timed out. Chosen: collectives have time-outs of minutes. In the few jobs with steps of this length,
the waiting ranks are noted every few passes (2 ms for 8 ranks)."""
GAVE_UP_SEEN_NS = 15 * NS
"""Nanoseconds before a rank's failure within which such waits count, unless bytes came meanwhile: passes that judge are
up to 3 s apart, and a program that raises takes seconds to end on a busy host."""
COUNTS_MOVE_S = 120.0
"""Seconds for which an answer of NCCL in which counts moved refutes a hang that began before it. Chosen."""
LAUNCHED_AHEAD_S = 5.0
"""Seconds for which ranks may launch operations ahead before they wait for one that is stuck. Chosen."""
