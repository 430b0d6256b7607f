"""Tunables of the agent: pauses, deadlines, and its budgets on a node and at the API server, with unit and reason.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Reports

HEARTBEAT_S = 30.0
"""Seconds between two renewals of the Lease while no job here has stalled."""
COMPARED_HEARTBEAT_S = 3.0
"""Seconds between two renewals while ranks are compared with those on other nodes, for half a minute at a time."""
HEARTBEATS_PER_S = 15.0
"""Renewals a second of all agents together while all is calm: with reports and the controller less than 20 writes a
second."""
LONGEST_HEARTBEAT_S = 2_000.0
"""Seconds between two renewals, at most, however many agents there are: a Lease is valid for half as long again, and
may claim an hour at most."""
COMPARED_HEARTBEATS_PER_S = 50.0
"""Renewals a second of all agents together while ranks are compared: a third of what kubelets renew for 1,500 nodes."""
STALLED_HEARTBEAT_S = 3.0
"""Seconds between two renewals while a job has stalled: without them a controller accepts a snapshot for 10 s."""
CONFIRMED_WITHIN_S = 1.0
"""Seconds after they were sampled for which stalled ranks are confirmed to be unchanged: four passes, or one."""
GANG_HEARTBEATS_PER_S = 200.0
"""Renewals a second for one stalled gang: less than for all, so that one gang cannot use up the budget. Chosen."""
STALLED_HEARTBEATS_PER_S = 300.0
"""Renewals a second for all stalled gangs: a third of a core of the API server."""
REFRESH_S = 120.0
"""Seconds between whole reports in which nothing changes: they repair an object that was altered or deleted. Chosen;
with 600 s, a deleted report hid a stopped rank for nine minutes (docs/bench/README.md, chaos)."""
STALLED_REFRESH_S = 20.0
"""Seconds between them while the ranks of a gang have stalled: without the report the controller does nothing for them.
Chosen."""
GANG_REFRESHES_PER_S = 30.0
"""Unchanged reports a second for one gang."""
REFRESHES_PER_S = 2.0
"""Unchanged reports a second of all agents: with more than 240 agents the pause is longer than `REFRESH_S`. Chosen, as
`HEARTBEATS_PER_S`."""
DETAILS_PER_S = 25.0
"""Reports a second, of all agents, about ranks of which it is not known whether they make progress."""
REPORT_PAUSE_S = 5.0
"""Seconds between two reports about a small gang that changes all the time, at least."""
GANG_REPORTS_PER_S = 100.0
"""Reports a second about one gang whose state keeps changing: half a core of the API server."""
REPORT_BURST = 6
"""Reports about one gang that may follow each other without a pause."""
REPORT_RESERVE = 3
"""Reports of this burst that are reserved for news: details must not use up what a verdict needs."""
DETAILS_GAP_S = 1.0
"""Seconds between two reports with different details."""
VALID_PERIODS = 3
"""Periods for which a renewal is valid while ranks are stalled: two may be lost."""
SEND_TURN_S = 0.25
"""Seconds between two passes of the report sender, each of which costs 0.15 ms."""
SEND_CALM_TURN_S = 1.0
"""Seconds between them while nothing waits and no rank has stalled. News ends the pause."""
SEND_RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each further attempt to reach a server; each agent takes 0.5 to 1.5 times as long."""
SEND_REFUSED_S = 10.0
"""Seconds before a refused report is sent again."""
NODE_REPORT_EXPIRES_S = 180
"""Seconds for which a report about a node is valid without a newer one."""
EXPLAINED_S = 120.0
"""Seconds after the last fault of a gang for which log findings are reported: a log is read after the kernel announced
the fault, and a kubelet may have restarted everything by then."""
SAME_MOMENT_S = 1.0
"""Seconds by which two readings of one beginning may differ: passes are up to a second apart."""
DEVICES_READ_NS = 30_000_000_000
"""Nanoseconds between two readings of which devices the watched processes have open: each costs a directory of
descriptors per process."""
HARMLESS_REPORTED_NS = 24 * 3600 * NS
"""Nanoseconds for which a harmless event is reported: a day, so that it is seen in the morning. Programs cause such
events at will."""
LEASE_REFUSED_S = 300.0
"""Seconds before an API server that refused a Lease (no permission) is asked again: reports alone are enough."""
AGENTS_COUNTED_S = 600.0
"""Seconds between two counts of the agents."""
OVER_REPORTED_S = 120.0
"""Seconds after a pod was last over one of its bounds for which that is reported, so that a controller that starts
meanwhile reports it too. Chosen."""
RENEWED_EARLY = 0.9
"""Least share of its period after which a renewal is sent: up to a tenth early, so that agents that started together
drift apart."""

# --- Orders

ORDERS_TURN_S = 1.0
"""Seconds between two passes over the orders, at most: what could not be released is tried again then."""
LONGEST_STOP_S = 15.0
"""Most seconds for which something stays stopped after its last order to stop, even if the wall clock was set: such
orders expire after 10 s by the controller's clock, from which ours may differ by a few."""
STOP_WAIT_S = 1.0
"""Seconds after which a process that has not stopped is in an uninterruptible call."""
KILL_WAIT_S = 0.5
"""Seconds to wait for a killed container: the kernel kills its other processes once its first has ended, which takes
milliseconds."""
JOURNAL_WAIT_S = 2.0
"""Seconds after which a disk that has not taken the journal does not answer; the agent continues without it where it
can."""
STOP_POLL_S = 0.002
"""Seconds between two readings of which processes still run."""
RESUMER_START_S = 5.0
"""Seconds for the start of the resumer: an interpreter without packages takes 20 ms, and a second on a busy node.
Chosen."""
RESUMER_TAKES_S = 0.5
"""Seconds after which a resumer that takes no packet is dead or stopped: it does nothing else. Chosen."""
RESUMER_KEPT = 512
"""Descriptors of stopped processes that the agent keeps for a restarted resumer: half of the 1,024 that a container may
have open."""
BUNDLE_LIMIT_S = 2.0
"""Seconds to write the evidence of a gang: its ranks are stopped meanwhile, and resumed after 10 s."""
SNAPSHOT_LIMIT_S = 10.0
"""Seconds for it where no process is stopped and no kill waits. Stacks take 0.3 s; on two cores with a load of 20, 3
s."""
GPU_DUMP_WAIT_S = 1.0
"""Seconds that a stop waits for core dumps of GPUs, where the operator wants them: the controller waits 3 s for all
stops, and a dump without memory takes tenths of a second. Chosen."""
CHECKPOINT_LIMIT_S = 300.0
"""Seconds for a checkpoint of a container: one of 100 GB is written to a fast disk in a minute. Chosen."""
EVIDENCE_PASS_S = 1.1
"""Seconds of the longest wait for the pass that makes snapshots of a gang's ranks for its evidence: one period."""
BUNDLES_KEPT = 32
"""Bundles in one folder; the oldest is removed."""
BUNDLES_BYTES = 512 << 20
"""Bytes of all bundles in one folder: a part of a node has 0.1 to 2 MB, a bug report of NVIDIA up to 64 MiB. Chosen."""
BUNDLES_AGE_S = 30 * 86400.0
"""Seconds after which bundles are removed: log lines are kept no longer than an incident is discussed. Chosen."""
BUNDLES_AHEAD_S = 3600.0
"""Seconds by which a bundle's name may be ahead of the clock: more than clocks of hosts that share a folder differ. One
that is further ahead was written before the clock was set back, and counts as the oldest. Chosen."""
ARCHIVE_MOST_BYTES = 1 << 30
"""Bytes of an archive that are read at most: 1,280 nodes with half a megabyte each. Chosen."""
ARCHIVE_FILES = 200_000
"""Files of an archive that are read at most: 1,280 nodes with the logs of 100 containers each. Chosen."""

# --- Readers of what tenants wrote

READER_AGAIN_S = 0.5
"""Seconds before a reader that ended is started again; doubled each time that it ends soon."""
READER_LONGEST_PAUSE_S = 60.0
"""Seconds of the longest pause before it is started again. Chosen."""
READER_STEADY_S = 60.0
"""Seconds of life after which the end of a reader does not count as soon."""
READER_PING_S = 2.0
"""Seconds without an answer to an empty request after which a reader is stuck as a whole: a parser that never releases
the interpreter lock. A busy node delays a thread for less. Chosen."""
READER_CPU_S = 4 * 3600
"""Seconds of CPU time of one reader in its whole life: days of regular use. A backstop in case the agent is stuck.
Chosen."""
READER_PATIENCE_S = 5.0
"""Seconds of waiting for an answer after which a client checks whether the reader lives. Chosen."""
LOG_TURN_S = 20.0
"""Seconds for one pass over the logs: `LOG_TURN_BUSY_S` of computing, on a busy node. Chosen."""
RANK_READ_S = 10.0
"""Seconds for a request to a recorder, which takes milliseconds. Chosen."""
THREAD_READ_S = 3600.0
"""Seconds for one reading of a process. One that does not return is a fact about the process, and is not started again.
Chosen."""
OPEN_FILES_S = 1.0
"""Seconds for a search of open files: it takes 0.1 s of CPU at most, and a pass waits for it. A reader that ended runs
again by then."""
INSPECTOR_READ_S = 30.0
"""For NCCL Inspector's files of a job, which take seconds, or longer on a slow file system. Chosen."""
ELF_READ_S = 60.0
"""Seconds for the symbols of one library: the largest of frameworks have tens of megabytes of names. Chosen."""

# --- Pods and their processes

CGROUP_ROOTS_S = 5.0
"""Seconds between two searches for the roots of control groups, at least, for a pod that has none in the known ones."""
CONTAINER_CREATED_NS = 60_000_000_000
"""Nanoseconds: longer than any runtime takes once it has started its process; images and volumes are prepared
before."""
NEXT_START_NS = 500_000_000
"""Nanoseconds after an order was carried out before processes join the next start of the gang: a dying process must not
be taken for a member of it."""
JUDGED_PASSES = 3
"""Passes of which one judges a job that trains and shows nothing unusual. The others only take what moved: all that can
be missed meanwhile is that it is slow, which must last for seconds before it is reported."""
LISTING_SHORTEST_NS = 3_000_000_000
"""Nanoseconds between two listings of control groups, at least; doubled while they find nothing new. Children are
announced, and the sampler sees what joins a known group, so a listing finds only what joins a new group."""
LISTING_LONGEST_NS = 30_000_000_000
"""Nanoseconds between two listings, at most: the delay until a process is seen that joins a new group unannounced.
Chosen."""
LISTING_OF_STRANGERS_NS = NS
"""Nanoseconds between two listings caused by foreign processes: a group may contain processes that are not members, and
they may change."""
BLINDNESS_AGAIN_NS = 20_000_000_000
"""Nanoseconds between two reports of a lasting blindness, so that an alert on its count stays active."""

# --- Logs, inspections and the agent itself

LOG_POLL_S = 0.5
"""Seconds between two reads of the logs while their findings are reported: a crash is explained within a second of its
last line."""
LOG_CALM_POLL_S = 2.5
"""Seconds between two reads otherwise. A read costs 0.8 ms in two processes: twice a second, that was a third of what a
calm agent used."""
LOG_CORE_SHARE = 0.05
"""Share of one core, at most: 5 MB/s of quiet logs, which is 18 GB an hour. Faster output is skipped."""
ROUND_DEADLINE_S = 150.0
"""Seconds for one round: the longest deadline of a light check (a plug-in's, 120 s), and some."""
FIRST_ROUND_S = 30.0
"""Seconds within which the first round begins, at random, so that agents that start together do not write together."""
ROUND_AGAIN_S = 30.0
"""Seconds before a failed write is tried again, and between a round and one that a fault triggers."""
ROUNDS_MISSED = 3
"""Intervals without a round after which the health is unknown."""
INSPECTION_NICENESS = 10
"""Niceness of inspections: they share the node with training."""
DEVICE_GONE_S = 7 * 86400.0
"""Seconds for which a GPU or network adapter that left the bus is remembered: a week, after which it is back or was
replaced. A cordon for it does not end by that."""
FAULT_REMEMBERED_S = 7 * 86400.0
"""Seconds for which a fault of a device is remembered: failing hardware fails again within days. Chosen."""
FAULT_ANEW_S = 60.0
"""Seconds within which a fault that is announced again is the same: a driver repeats a line, and clocks are set.
Chosen."""
FAULTS_REPEATED = 3
"""Occurrences of the same fault of a device, within `FAULT_REMEMBERED_S`, from which on it is a warning. Chosen: two
may be two programs."""
LOOP_SILENT_S = 30.0
"""Seconds without a pass after which the loop hangs. A pass takes milliseconds; a node that starves the agent for this
long is not observed anyway."""
ORDERS_SILENT_S = 60.0
"""Seconds without a pass over the orders after which it hangs. A pass takes a second, or some seconds while a gang is
stopped and its evidence is saved."""
REPORTS_SILENT_S = 120.0
"""Seconds without progress after which the sender hangs: one request may take 35 s before it is given up."""
LATE_PERIODS = 3.0
"""Periods without a pass after which the jobs of this node are reported as UNKNOWN and no longer as they were."""


# --- Python stacks of the ranks at a verdict

STACKS_LIMIT_S = 5.0
"""Seconds for the readings of all stacks: py-spy took 0.1 to 0.2 s for a rank, two run at once; enough for 64 ranks,
the most that are read."""
STACKS_AGAIN_S = 60.0
"""Seconds between two readings, at least: each costs the node a tenth of a second of CPU per rank."""
STACKS_BEFORE_ACTION_S = 2.0
"""Seconds that an action waits for a reading: 16 ranks."""
STACKS_FRESH_S = 5.0
"""Seconds before an action within which stacks were read so that they are not read again."""

# --- What is remembered of jobs

MEMORIES_KEPT = 512
"""Jobs of one node whose history is remembered, a few KB each; the one that ran longest ago is forgotten first."""
MEMORY_SAVED_S = 300.0
"""Seconds between two writes of these histories: an agent that is killed loses minutes of a record of days."""
DRILL_POLL_S = 0.1
"""Seconds between two checks of a drill whether the process is gone: a person reads the time. Chosen."""
DRILL_USE_S = 2.0
"""Seconds for which a drill measures the CPU time of a pod before it restricts it to a part of that. Chosen."""
DRILL_SLOW_SHARE = 1 / 3
"""Share of its CPU time that a drill leaves to a pod: a rank that computes all the time is then three times as slow,
which is never noise. Chosen."""
DRILL_PRINTS_S = 1.0
"""Seconds after which a log that does not take a line is not read. Chosen."""
DRILL_NOTE_TAKEN_S = 10.0
"""Seconds after which an agent that has not taken a note does not read it: it reads at each pass. Chosen."""
LONGEST_DRILL_S = 600.0
"""Seconds for which a drill keeps a rank stopped, at most, whatever is requested. Chosen."""
LAG_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Seconds, upper bounds of the histogram of the loop's lag: fine below the quarter of a second that is the goal."""
