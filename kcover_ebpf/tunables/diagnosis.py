"""Tunables of the judge: what it waits for, believes and takes as a sign, with unit, and the measurement or reason.

No option sets them. "Chosen" means that only the effect of halving or doubling the value on the verdicts of tapes was
measured. What that changes is in docs/bench/thresholds.md, for these and all other numbers that decide a verdict. A cap
on memory is defined next to what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Progress and its cadence

UNLEARNED_STALL_S = 8.0
"""Seconds of silence after which a rank has stalled while nothing was learned about its job: longer than a step of most
jobs."""
LEARNED_GAPS = 5
"""Gaps from which on a cadence counts as learned. Together they must also last three times as long as the longest of
them."""
TRAINING_SIGNS = 8
"""Signs of progress of each rank after which a job counts as training, even without bytes between its ranks. Chosen."""
TWO_PASSES_NS = 2 * NS
"""Nanoseconds of two passes in calm times: what happened longer ago was observed as a whole. New processes were found,
efforts and silences are again those of complete passes after records were lost, and bytes of the pass in which a burn
began are no longer taken for later ones."""
BURN_DOUBT_S = 15.0
"""Seconds beyond the threshold after which a burn without any other sign counts as a stall: enough to ask the job's own
NCCL five times. A restarted job that burns from its first step on is still seen to have recovered within 30 s (the
threshold is 8 s while nothing was learned)."""
LONGEST_BURN_NS = 180 * NS
"""Nanoseconds of the longest use of a CPU that counts as one step. A longer one is many steps that nothing separates:
learned as one gap, it would hide every stall shorter than 1.5 times the training so far."""
LEARNED_MINUTES = 3
"""Minutes after which their median is the job's usual rate."""
RECENT_PASSES = 8
"""Passes, the newest ones, that count as the present."""
NOT_YET_JOINED_S = 5.0
"""Seconds since its last sign of progress that a rank needs to count as waiting for one that has not joined yet."""
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
REGISTER_SAMPLES_NEEDED = 8
"""Samples that must have found the thread running before that is judged."""
LOOP_VALUES_SHARE = 0.4
"""Share of different values among the register samples, at most: a loop in place repeats them, a computation does
not."""
LIBRARY_WAITS_IN_A_ROW = 5
"""Samples in a row that found a thread in the code of a library that waits. A thread that launches kernels half of the
time is found like this once in 32, and then for a moment: the silence of a stall is longer."""
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
STORAGE_RATE = 16 * 1024
"""Bytes a second from and to storage, or over a connection to outside, from which on they are an effort: log lines,
requests and telemetry are fewer, files of a checkpoint more."""
STORAGE_CALLS_RATE = 256 * 1024
"""Bytes a second in read and write calls from which on they are an effort; pipes and terminals count as well."""
FABRIC_FLOOR = 64 * 1024
"""Bytes a second over all RDMA ports from which on they are payload: connection management and heartbeats need
hundreds."""
LEAD_RESTS_NS = 30 * NS
"""Nanoseconds without movement after which a first thread, or a rank, only waits for what moved since: another thread
of it, or processes that it started, train."""
MOVED_RECENTLY_NS = 1_500_000_000
"""Nanoseconds since it last moved or slept within which a thread counts as moving: a pass and a half in calm times."""
EFFORT_WINDOW_NS = 3 * NS
"""Nanoseconds after its end for which an effort still explains a wait: three passes in calm times."""
STORAGE_WINDOW_NS = 2 * EFFORT_WINDOW_NS
"""Nanoseconds, as `EFFORT_WINDOW_NS` for a storage call: its bytes are charged when it begins."""
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
CYCLE_FACTOR = 2.0
"""Factor on a stall's threshold after which something that one long step resembles is reported: a circle of waits,
waits of all ranks for their devices, one rank that computes while all others wait."""
CYCLE_FLOOR_S = 6.0
"""Seconds before which no circle of waits, and no wait of all ranks for their devices, is reported: no rank is named by
it, so it may take its time."""
LATE_FLOOR_S = 20.0
"""Seconds for which a rank counts as late, and after which it counts as hung, if its wait often ended by itself or it
only sent before the others did. A circle of waits is confirmed after this time too, because a long step resembles
one."""
LONGEST_STEP_S = 60.0
"""Seconds that one step of all devices may take, whatever the steps before it took, and the first step of a large job
with its warm-up: until then such waits are only a suspicion. After a clock was lost, a silence as long is a stall until
gaps were learned without it."""
READER_DRAINS_NS = 3 * NS
"""Nanoseconds without a read after which the reader of a full pipe or socket does not read. Before, its
writer moves."""
DEVICE_WAIT_OTHERS = 2
"""Ranks whose network threads must all differ from those of the rank that is named."""
VICTIM_S = 0.4
"""Seconds for which all other ranks must have waited for the culprit: less is the rest of a step."""

# --- Connections

PAYLOAD_RATE = 256
"""Bytes a second, both directions together, from which on a connection carries more than heartbeats: twice the largest
of them."""
PEER_BYTES_FLOOR = 2 * PAYLOAD_RATE
"""Bytes between a rank and others in one pass that are never more than heartbeats: two seconds of `PAYLOAD_RATE`."""
START_UP_BYTES = 64 * 1024
"""Bytes over one connection that a start-up exchange stays below."""
STREAM_RATE = 128 * 1024
"""Bytes a second up to which a connection that is always at work is telemetry."""
SEND_LEAD_NS = 60_000_000
"""Nanoseconds: a rank whose last send is this much earlier than that of all others has not entered their collective.
Kernel ticks of up to 10 ms and scheduling stay below it."""
PAYLOAD_PASSES = 2
"""Passes with payload before a connection counts as one of the job's, and passes of training with any bytes before an
address counts as a habit: one may be chance."""
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
BLINDNESS_REPORTED_NS = 10 * NS
"""Nanoseconds after which a lasting blindness is reported (UNKNOWN). Before, the last verdict may well still be
true."""
PROCESS_SAMPLED_WITHIN_NS = 5 * NS
"""Nanoseconds without a sample of any thread after which the sampler does not see a new process, and a new rank is
unobserved: normally it is in the next pass."""

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
LOSS_FELT_NS = 10 * NS
"""Nanoseconds within which a loss is felt, at least: a rank fails because another left before it, or a rank continues
without its dead loader until prefetched data is used up."""
LOSS_FELT_STEPS = 1.5
"""Factor on the job's longest gap, an alternative to `LOSS_FELT_NS`: peers notice at their next collective."""

# --- When a verdict is reported

VERDICT_STABLE_NS = 200_000_000
"""Nanoseconds for which a fault must be found before it is reported: two passes at the closer period."""
ORDINARY_STABLE_NS = 1 * NS
"""Nanoseconds for which a start, a training or an end must be found while no fault is open."""
RECOVERY_STABLE_NS = 3 * NS
"""Nanoseconds for which a lossy link, a quota or a recovery must be found, and the successor of a failed rank must
exchange bytes: a job may move once and stop again."""

# --- Ranks that lack something

STARVED_SHARE = 0.5
"""Share of the time without a CPU, though it wanted one or because a quota kept it off, from which on that is what
makes a rank slow."""

# --- One rank that computes, and counts that move

LONE_FLOOR_S = 60.0
"""Seconds before which it is never named: loading, compiling and metrics on one rank are over within a minute in most
jobs. So are answers of services and helpers, for which a rank is named then too, and work on one node while the ranks
of all others wait. Chosen; on tapes whose rank 0 computes for 20 to 240 s every 5 to 10 minutes it was named 2 to 4
times an hour."""
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
