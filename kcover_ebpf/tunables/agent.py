"""Tunables of the agent: pauses, deadlines, and its budgets on a node and at the API server, with unit and reason.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Reports

HEARTBEAT_S = 30.0
"""Between renewals of the Lease while no job here has stalled."""
COMPARED_HEARTBEAT_S = 3.0
"""The same while ranks are compared with those on other nodes, for half a minute at a time."""
HEARTBEATS_PER_S = 15.0
"""A second, of all agents while all is calm: with reports and the controller less than 20 writes a second."""
LONGEST_HEARTBEAT_S = 2_000.0
"""However many agents there are: a Lease counts for half as long again, and may claim an hour at most."""
COMPARED_HEARTBEATS_PER_S = 50.0
"""A second, of all agents while ranks are compared: a third of what kubelets renew for 1,500 nodes."""
STALLED_HEARTBEAT_S = 3.0
"""The same while one has stalled: a controller believes a snapshot for 10 s without it."""
CONFIRMED_WITHIN_S = 1.0
"""Ranks that have stalled are confirmed to be as they were for so long after they were seen: four passes, or one."""
GANG_HEARTBEATS_PER_S = 200.0
"""Renewals a second for one stalled gang, less than for all, so that one gang does not use up what all may (chosen),"""
STALLED_HEARTBEATS_PER_S = 300.0
"""and for all of them: a third of a core of the API server."""
REFRESH_S = 120.0
"""Between whole reports in which nothing changes: an object that was altered or deleted is repaired by it. Chosen; a
report that was deleted hid a stopped rank for nine minutes where this was 600 s (docs/bench/README.md, chaos)."""
STALLED_REFRESH_S = 20.0
"""The same while the ranks of a gang have stalled: without the report nothing is done for them. Chosen."""
GANG_REFRESHES_PER_S = 30.0
"""Of these a second for one gang, in which nothing changes."""
REFRESHES_PER_S = 2.0
"""A second, of all agents: from 240 agents on the pause is longer than `REFRESH_S`. Chosen, as `HEARTBEATS_PER_S`."""
DETAILS_PER_S = 25.0
"""Reports a second, of all agents, about ranks of which it is not known whether they make progress."""
REPORT_PAUSE_S = 5.0
"""Shortest pause between reports about a small gang that changes all the time."""
GANG_REPORTS_PER_S = 100.0
"""A second, of one gang whose state keeps changing: half a core of the API server."""
REPORT_BURST = 6
"""Reports about one gang that may follow each other at once."""
REPORT_RESERVE = 3
"""Of these for news: details must not use up what a verdict needs."""
DETAILS_GAP_S = 1.0
"""Between two reports with different details."""
VALID_PERIODS = 3
"""A renewal while ranks are stalled counts for so many of its periods: two may be lost."""
SEND_TURN_S = 0.25
"""Between two turns of what sends reports, each of which costs 0.15 ms;"""
SEND_CALM_TURN_S = 1.0
"""while nothing waits and no rank has stalled. News ends the pause."""
SEND_RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses before a server that cannot be reached is tried again; each agent takes 0.5 to 1.5 times as long."""
SEND_REFUSED_S = 10.0
"""A report that was refused is not sent again before."""
NODE_REPORT_EXPIRES_S = 180
"""A report about a node counts for so long without a newer one."""
EXPLAINED_S = 120.0
"""What logs show is reported so long after the last fault of a gang: a log is read after the kernel announced it,
and a kubelet may have restarted everything by then."""
SAME_MOMENT_S = 1.0
"""Two readings of when something began differ by less: passes are up to a second apart."""
DEVICES_READ_NS = 30_000_000_000
"""Between two readings which devices the watched processes have open: it costs a directory of descriptors for each."""
HARMLESS_REPORTED_NS = 24 * 3600 * NS
"""A harmless event is reported for a day, so that it is seen in the morning; programs cause them at will."""
LEASE_REFUSED_S = 300.0
"""An API server that refuses a Lease (no permission) is not asked more often: reports alone will do."""
AGENTS_COUNTED_S = 600.0
"""Between two readings of how many agents there are."""
OVER_REPORTED_S = 120.0
"""A pod of which something was over its bound is reported for so long after: a controller that starts meanwhile says it
too. Chosen."""
RENEWED_EARLY = 0.9
"""Renewals are up to a tenth early, so that agents that began together do not stay together."""

# --- Orders

ORDERS_TURN_S = 1.0
"""Longest pause between two turns: what could not be released is tried again then."""
LONGEST_STOP_S = 15.0
"""Nothing stays stopped for longer, whatever became of the wall clock: orders to stop end after 10 s by the
controller's, from which ours may differ by a few."""
STOP_WAIT_S = 1.0
"""A process that has not stopped by then sits in an uninterruptible call."""
KILL_WAIT_S = 0.5
"""A container's other processes are killed by the kernel once its first has ended, which takes milliseconds."""
JOURNAL_WAIT_S = 2.0
"""A disk that has not taken the journal by then does not answer: what need not be on it is done without."""
STOP_POLL_S = 0.002
"""Between two readings of which processes still run."""
RESUMER_START_S = 5.0
"""An interpreter without packages takes 20 ms, and a second on a node that is busy. Chosen."""
RESUMER_TAKES_S = 0.5
"""It does nothing but take packets: one that does not take them so long is dead or stopped. Chosen."""
RESUMER_KEPT = 512
"""Descriptors of stopped processes that the agent keeps for a resumer that is started again, half of the 1,024 that a
container may have open."""
BUNDLE_LIMIT_S = 2.0
"""Time to write the evidence of a gang: its ranks are stopped meanwhile, and released after 10 s."""
SNAPSHOT_LIMIT_S = 10.0
"""The same where no process is stopped and no kill waits. Stacks take 0.3 s; on two cores with a load of 20, 3 s."""
GPU_DUMP_WAIT_S = 1.0
"""A stop waits so long for core dumps of GPUs, where the operator wants them: the controller waits 3 s for all stops,
and a dump without memory takes tenths of a second. Chosen."""
CHECKPOINT_LIMIT_S = 300.0
"""A container of 100 GB is written to a fast disk in a minute. Chosen."""
EVIDENCE_PASS_S = 1.1
"""Longest wait for the pass of the loop that makes snapshots of a gang's ranks for its evidence: one period."""
BUNDLES_KEPT = 32
"""Bundles in one folder; the oldest is removed."""
BUNDLES_BYTES = 512 << 20
"""All bundles of one folder: a part of a node has 0.1 to 2 MB, a bug report of NVIDIA up to 64 MiB. Chosen."""
BUNDLES_AGE_S = 30 * 86400.0
"""Older bundles are removed: log lines are not kept for longer than an incident is talked about. Chosen."""
ARCHIVE_MOST_BYTES = 1 << 30
"""Of an archive that is read: 1,280 nodes with half a megabyte each. Chosen."""
ARCHIVE_FILES = 200_000
"""Of an archive that is read: 1,280 nodes with the logs of 100 containers each. Chosen."""

# --- Readers of what tenants wrote

READER_AGAIN_S = 0.5
"""Until a reader that ended is started again; doubled each time that it ends soon,"""
READER_LONGEST_PAUSE_S = 60.0
"""up to this. Chosen."""
READER_STEADY_S = 60.0
"""A reader that lived longer did not end soon."""
READER_PING_S = 2.0
"""A reader that does not answer a question without work in it is stuck as a whole: a parser that keeps the interpreter
lock. A busy node delays a thread for less. Chosen."""
READER_CPU_S = 4 * 3600
"""CPU time of one reader, in its whole life: days of what one may take. A backstop where the agent is stuck. Chosen."""
READER_PATIENCE_S = 5.0
"""Whoever waits longer for an answer asks whether the reader lives. Chosen."""
LOG_TURN_S = 20.0
"""For one turn over the logs, `LOG_TURN_BUSY_S` of computing on a node that is busy. Chosen."""
RANK_READ_S = 10.0
"""For a question to a recorder, which takes milliseconds. Chosen."""
THREAD_READ_S = 3600.0
"""For one reading of a process: one that does not return is a fact about it, and is not begun again. Chosen."""
OPEN_FILES_S = 1.0
"""For a search of open files: it takes 0.1 s of CPU at most, and a pass waits for it. A reader that ended is there
again by then."""
ELF_READ_S = 60.0
"""For the symbols of one library: the largest of frameworks have tens of megabytes of names. Chosen."""

# --- Pods and their processes

CGROUP_ROOTS_S = 5.0
"""The roots of control groups are searched again no sooner than this, for a pod that has none in those that are
known."""
CONTAINER_CREATED_NS = 60_000_000_000
"""Longer than any runtime takes once it has started its process: images and volumes are there before."""
NEXT_START_NS = 500_000_000
"""After an order was carried out, processes join the next start of the gang no sooner: what is dying must not be
taken for a member of it."""
JUDGED_PASSES = 3
"""Passes of which one inspects and judges a job that trains and shows nothing unusual. The others only take what moved:
all that can be missed meanwhile is that it is slow, which holds for seconds before it is reported."""
LISTING_SHORTEST_NS = 3_000_000_000
"""Shortest pause between two listings of control groups; it doubles while they find nothing new. Children are
announced, and what joins a known group is seen by the sampler, so a listing finds only what joins a group that is
new."""
LISTING_LONGEST_NS = 30_000_000_000
"""Longest pause: so late a process is seen that joins a new group unannounced. Chosen."""
LISTING_OF_STRANGERS_NS = NS
"""Between two listings that strangers caused: a group may hold processes that are no members, and they may change."""
BLINDNESS_AGAIN_NS = 20_000_000_000
"""How often a blindness that lasts is reported, so that an alert on its count continues while it does."""

# --- Logs, inspections and the agent itself

LOG_POLL_S = 0.5
"""While what logs show is reported: a crash is explained within a second of its last line."""
LOG_CALM_POLL_S = 2.5
"""While it is not. A turn costs 0.8 ms in two processes: twice a second that was a third of what a calm agent used."""
LOG_CORE_SHARE = 0.05
"""Of one core, at most: 5 MB/s of quiet logs, which is 18 GB an hour. What is written faster is skipped."""
ROUND_DEADLINE_S = 150.0
"""Of one round: the longest deadline of a light check (a plug-in's, 120 s), and some."""
FIRST_ROUND_S = 30.0
"""The first round begins within so many seconds, so that agents that start together do not write together."""
ROUND_AGAIN_S = 30.0
"""Before a write that failed is tried again, and between a round and one that a fault asks for."""
ROUNDS_MISSED = 3
"""After so many intervals without a round the health is unknown."""
INSPECTION_NICENESS = 10
"""Inspections share the node with training."""
DEVICE_GONE_S = 7 * 86400.0
"""A GPU or network adapter that is no longer on the bus is remembered for a week: one that fell off is back by then,
or replaced. A cordon for it does not end by that."""
FAULT_REMEMBERED_S = 7 * 86400.0
"""After a fault of a device: one that fails by its hardware fails again within days. Chosen."""
FAULT_ANEW_S = 60.0
"""A fault that is announced again within it is the same: a driver repeats a line, and clocks are set. Chosen."""
FAULTS_REPEATED = 3
"""The same fault of a device so often in that time is a warning. Chosen: two may be two programs."""
LOOP_SILENT_S = 30.0
"""A pass takes milliseconds; a node that starves us for so long is not observed anyway."""
ORDERS_SILENT_S = 60.0
"""A turn takes a second, and at most some seconds while a gang is stopped and its evidence is kept."""
REPORTS_SILENT_S = 120.0
"""One request may take 35 s before it is given up."""
LATE_PERIODS = 3.0
"""Without a pass for so many periods the jobs of this node are UNKNOWN, not as they were."""


# --- Python stacks of the ranks at a verdict

STACKS_LIMIT_S = 5.0
"""py-spy took 0.1 to 0.2 s for a rank, two run at once: for 64 ranks, the most that are read."""
STACKS_AGAIN_S = 60.0
"""Shortest pause between two readings: each costs a rank's node a tenth of a second of CPU for each rank."""
STACKS_BEFORE_ACTION_S = 2.0
"""An action waits so long for a reading: 16 ranks."""
STACKS_FRESH_S = 5.0
"""What was read so shortly before an action is not read again."""

# --- What is remembered of jobs

MEMORIES_KEPT = 512
"""Jobs of one node whose past is remembered, a few KB each; the one that ran longest ago is forgotten first."""
MEMORY_SAVED_S = 300.0
"""They are written so often: what is lost with an agent that is killed is minutes of a record of days."""
DRILL_POLL_S = 0.1
"""How often a drill asks whether the process is gone: a person reads when it was. Chosen."""
DRILL_USE_S = 2.0
"""For so long a drill observes how much CPU time a pod uses, before it gives it a part of that. Chosen."""
DRILL_SLOW_SHARE = 1 / 3
"""That part: a rank that computes all the time is then three times as slow, which no noise is. Chosen."""
DRILL_PRINTS_S = 1.0
"""A log that does not take a line for so long is not read. Chosen."""
DRILL_NOTE_TAKEN_S = 10.0
"""An agent that has not taken a note for so long does not read it: it reads at each pass. Chosen."""
LONGEST_DRILL_S = 600.0
"""No drill keeps a rank stopped for longer, whatever is asked for. Chosen."""
LAG_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the histogram of the loop's lag: fine below the quarter of a second that is the goal."""
