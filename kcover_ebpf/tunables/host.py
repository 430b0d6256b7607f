"""Tunables of the sensor on one host: reading /proc, ending a job, passes of the BPF programs, and what programs write.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Reading processes

READ_STUCK_S = 1.0
"""Seconds after which a read of a few kilobytes, which takes microseconds, is stuck."""
READ_SLOW_S = 0.02
"""Seconds after which another thread takes over the reads that wait behind a slow one. Chosen: some hundred times what
a read takes."""
IDENTITY_WAIT_S = 0.1
"""Seconds to wait for the identity of new processes: they are known in the pass in which they appear, unless something
is wrong with them."""
MAPS_AGE_S = 20.0
"""Seconds after which mappings of code are read again if their size changed: libraries are loaded while a program
starts. Chosen."""
MAPS_LONGEST_S = 600.0
"""Seconds after which they are read again if it did not: 3 ms for a process with PyTorch. Chosen."""
OPEN_DEVICES_S = 30.0
"""Seconds between two readings of open devices: they are opened when a training starts and closed when it ends. A
reading costs 2 us per open file."""
OPEN_FILES_CPU_S = 0.1
"""Seconds of CPU for one search of the open files of many processes: some 50,000 of them. The caller's pass continues
meanwhile."""


# --- Ending a job

KILL_WAIT_S = 5.0
"""Seconds after which a killed process that still exists is in an uninterruptible call."""
LEFTOVER_GRACE_S = 5.0
"""Seconds for which processes that the job's first process left behind may clean up."""
SUPERVISOR_POLL_S = 0.05
"""Seconds between two checks of whether a job that is being ended is gone. Chosen."""
SUPERVISOR_POLL_STUCK_S = 1.0
"""Seconds between two such checks once processes of it are stuck."""
GROUP_REMOVE_S = 10.0
"""Seconds for the removal of an empty control group: the kernel may answer EBUSY for a while. Chosen."""
SUPERVISOR_ANSWER_S = KILL_WAIT_S + 5.0
"""Seconds to wait for the supervisor's answer: longer than it takes to report what it could not kill."""
SUPERVISOR_CLOSE_S = 2.0
"""Seconds to wait at our own end for the supervisor, which removes the control group of the job. Chosen."""
KILL_POLL_S = 0.01
"""Seconds between two rounds of SIGKILL. Chosen."""
FREEZE_PATIENCE_S = 0.5
"""Seconds after which a group that is not frozen has a process in an uninterruptible call, and is killed as it is."""
FREEZE_POLL_S = 0.005
"""Seconds between two checks of whether it is frozen. Chosen."""
END_SLACK_S = 10.0
"""Seconds that an end may take beyond the grace period of the job: `KILL_WAIT_S`, and as much again."""
LAST_WORD_S = 0.2
"""Seconds after the end of a job's first process within which the supervisor reports the end of the job."""
OUT_FLUSH_S = 2.0
"""Seconds at the end of a run for a reader of its output that lags behind: whoever waits for the exit code must not
wait for it. Chosen: a reader that reads at all takes what a run says last within milliseconds."""


# --- Helper processes

HELPER_REAP_S = 1.0
"""Seconds within which a killed helper has ended, unless a call of the kernel does not return. Chosen."""
HELPER_CPU_S = 60
"""Seconds of CPU of a helper that answers once, above all py-spy, which takes 0.2 s for a rank. Chosen."""


PROBES_AT_ONCE = 4
"""Processes that probe file systems for one job at once: ranks that wait for one server learn the same from few of
them."""
PROBE_AGAIN_NS = 5 * NS
"""Nanoseconds after which a file system that answered is probed again while a thread still waits for it. Chosen."""


# --- Passes

SUSPICIOUS_SPREAD = 0.3
"""Part of the period by which passes are earlier or later at random while a job is suspicious. At even distances, a job
with steps of the same length would be sampled at the same place of its step for seconds, and a few passes without a
change are a stall."""
LATE_PASS_PERIODS = 2.5
"""Regular periods after which a late pass says nothing about the time between."""
LATE_SUSPENDED_NS = 100_000_000
"""Nanoseconds that the node was suspended between two passes (boottime ran, monotonic did not) above which the pass is
late."""
TICK_MEASURE_S = 0.1
"""Seconds over which the length of a tick is measured, where the count of jiffies does not show it: ten of the longest
(10 ms)."""
UNCONNECTED_PASSES = 16
"""Passes between full descriptor walks of a process without TCP sockets; inherited or passed sockets are found within
this many."""
UNANNOUNCED_PASSES = 4
"""As `UNCONNECTED_PASSES`, where no probe announces connect(2) and listen(2)."""
SOCKET_BYTES_A_PASS = 128 * 1024
"""Bytes of connection records that a pass takes of one pod: 900 connections, 10 ms of CPU. The rest follows in the next
passes: 16,384 connections took 0.25 s, and the other pods must not wait for them."""
SOCKET_WALK_NS_A_PASS = 5_000_000
"""Nanoseconds of CPU that a pass takes to walk the descriptors of one pod's processes: some 4,000 connections. The next
pass continues an unfinished walk. Four processes of 16,500 sockets at rest took 0.08 s in each pass, without any
record."""
LINKS_A_PASS = 4096
"""Connections of a job that a pass resolves to their far ends, on average: some 8 ms. With more, changes are found
passes later. A rank has some hundreds."""
LINKS_OF_A_RANK = 1024
"""Connections of one rank that a judgement takes: those with payload first, then those with waiting bytes, then the
newest. A rank has some hundreds; in a full mesh, one to each other rank."""


# --- Logs, metrics and tapes

CRASH_S = 30.0
"""Seconds within which tracebacks belong to one crash: ranks that fail together, and launchers, have written theirs by
then."""
FILE_TICK_NS = NS
"""Nanoseconds: longer than any tick of a file system's clock. Two changes of a file within one tick have the same
time."""
FINDING_RECENT_S = 600.0
"""Seconds after which a finding explains no present fault."""
LATE_LINE_S = 3.0
"""Seconds after a traceback by which earlier output of the program is in its log: it is flushed when the program ends.
Chosen."""
LOG_LINGER_S = 60.0
"""Seconds for which the log of a deleted pod is kept: it may still explain a crash that is being decided on."""
LOG_UNREAD_NS = 4 * NS
"""Nanoseconds between two readings of a job's log that count as silence, at most. Passes are 3 s apart at most
(`UNTRAINED_MOST_EASE` times the regular period); after a longer pause the reader was suspended, and the job may have
been."""
LOG_TURN_UNREAD_S = 30.0
"""As `LOG_UNREAD_NS`, for the logs of a node, in seconds: a turn of `LOG_TURN_BUSY_S` is followed by 19 s of rest
(`LOG_CORE_SHARE`)."""
LOG_TURN_BUSY_S = 1.0
"""Seconds of CPU time after which a pass over the logs ends; the next one continues with the rest. Chosen."""
NODE_JOB_RULES = 64
"""Different job rules applied to the logs of one node: each pattern may take 256 KiB of the reader, which has 48 MiB.
Chosen."""
NAMESPACE_JOB_RULES = 32
"""Different job rules of one namespace: four policies with eight each leave room for another namespace. Chosen."""
LONGEST_PHASE_S = 3600.0
"""Seconds of the longest phase that a program may announce (`kcover: phase NAME up to T s`), unless the operator allows
more: it would hide a hang for as long. Chosen; an evaluation or a conversion of a checkpoint takes less."""
SAME_LINE_S = 60.0
"""Seconds before a line with the same content about the same subject is written again. Chosen."""
METRICS_KEPT_S = 1.0
"""Seconds for which rendered metrics are reused: half of the shortest scrape interval in use. Chosen."""
SCRAPER_SILENT_S = 5.0
"""Seconds after which a client that neither sends nor takes anything is disconnected."""
FLUSH_PASSES = 10
"""Passes between two flushes of a tape: a killed sensor loses the last passes, and each flush costs some
compression."""


# --- Commands

LEAST_PERIOD_S = 0.5
"""Seconds of the shortest period of an agent: more frequent passes over a whole node cost too much. Chosen."""
DOCTOR_SELF_TEST_S = 0.5
"""Seconds for the self-test of `doctor`: as `LOG_SELF_TEST_NS` of `tunables.devices`, without passes."""
DOCTOR_NVML_S = 5.0
"""Seconds to wait for NVML: its initialisation takes seconds where the driver does not keep its state. Chosen."""
PREFLIGHT_REQUEST_S = 10.0
"""Seconds for one request of a preflight: a job must not wait for an API server that does not answer."""
PREFLIGHT_AGAIN_S = 10.0
"""Seconds between two requests of a preflight that waits until its node passes. Chosen."""
PREFLIGHT_PASSES_S = 20.0
"""Seconds after which a preflight lets its job start: `PREFLIGHT_REQUEST_S`, and Python's start on a tenth of a
core."""

SWEEP_PAUSE_NS = 10_000_000_000
"""Nanoseconds between two sweeps of the tables of threads and sockets: a full one takes 0.3 s."""
SWEEP_PAUSES = 10
"""Factor: after a sweep that took less than a second the next one may come this many times as long after it. Sweeps of
small tables cost little."""
RUN_STACKS_S = 1.0
"""Seconds to read the stacks of a job's ranks before it is ended on a verdict that was not announced. Chosen: with the
files it stays within `BUNDLE_LIMIT_S`, and such a verdict has taken seconds of patience before."""

# --- Runs of several hosts that are joined (`run --join`)

JOIN_ANSWER_S = 10.0
"""Seconds within which a run that connects must have identified itself. Chosen."""
JOIN_SILENT_S = 20.0
"""Seconds of silence after which a joined run, or the coordinator, is gone: each sends every `JOIN_BEAT_S`."""
JOIN_BEAT_S = 3.0
"""Seconds between two messages of a joined run, at most: reports are valid for 10 s."""
JOIN_TICK_S = 0.2
"""Seconds between two judgements of all hosts' reports: a verdict must hold for 0.3 s."""
JOIN_AGAIN_S = 1.0
"""Seconds before another attempt to reach the coordinator, which may be started later. Chosen."""
JOIN_ENDED_S = 30.0
"""Seconds within which all hosts must have ended their part of a job, and a lost connection must be back; otherwise it
is not started again. A kill takes 10 s at most."""
TRACED_STOPS_S = 2.0
"""Seconds after which a thread that does not stop is in an uninterruptible call: the others stop within a time slice.
Chosen."""
TRACED_COMPUTES_S = 5.0
"""Seconds to wait until a thread that is to be stopped computes; then it is stopped where it is. Chosen: some steps of
a training."""
TRACED_POLL_S = 0.001
"""Seconds between two checks of whether it has stopped. Chosen."""
TRACED_TRIES = 20
"""Attempts to stop a thread outside of a restartable sequence, which is a few instructions: usually the second
succeeds. Chosen."""
