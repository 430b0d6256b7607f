"""Tunables of the sensor on one host: reading /proc, ending a job, passes of the kernel half, and what programs write.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Reading processes

READ_STUCK_S = 1.0
"""A read of a few kilobytes takes microseconds; one that takes longer than this is stuck."""
READ_SLOW_S = 0.02
"""After so long another thread takes what waits behind a read. Chosen: some hundred times what a read takes."""
IDENTITY_WAIT_S = 0.1
"""New processes are known in the pass in which they appear, unless something is wrong with them."""
MAPS_AGE_S = 20.0
"""After so long mappings of code are read again if their size changed: libraries are loaded while a program starts.
Chosen."""
MAPS_LONGEST_S = 600.0
"""The same if it did not: 3 ms for a process with PyTorch. Chosen."""
OPEN_DEVICES_S = 30.0
"""Devices are opened when a training starts and closed when it ends; to read them costs 2 us for each open file."""
OPEN_FILES_CPU_S = 0.1
"""For one search of the open files of many processes: some 50,000 of them. Who asks makes its pass meanwhile."""


# --- Ending a job

KILL_WAIT_S = 5.0
"""A killed process that is still there after so long is in an uninterruptible call."""
LEFTOVER_GRACE_S = 5.0
"""Processes that the job's first process left behind may clean up for so long."""
SUPERVISOR_POLL_S = 0.05
"""Between two readings whether a job that is being ended is gone. Chosen."""
SUPERVISOR_POLL_STUCK_S = 1.0
"""The same once processes of it are stuck."""
GROUP_REMOVE_S = 10.0
"""For the removal of an empty control group: the kernel may answer EBUSY for a while. Chosen."""
SUPERVISOR_ANSWER_S = KILL_WAIT_S + 5.0
"""Longer than the supervisor takes to report what it could not kill."""
SUPERVISOR_CLOSE_S = 2.0
"""The supervisor removes the control group of the job when we end; it is waited for no longer than this. Chosen."""
KILL_POLL_S = 0.01
"""Between two rounds of SIGKILL. Chosen."""
FREEZE_PATIENCE_S = 0.5
"""A group that is not frozen by then has a process in an uninterruptible call, and is killed as it is."""
FREEZE_POLL_S = 0.005
"""Between two readings whether it is. Chosen."""
END_SLACK_S = 10.0
"""An end may take longer than the grace period of the job by `KILL_WAIT_S`, and as much again."""
LAST_WORD_S = 0.2
"""The supervisor reports the end of a job at most this long after its first process is gone."""


# --- Helper processes

HELPER_REAP_S = 1.0
"""A process that was killed has ended by then, unless a call of the kernel does not return. Chosen."""
HELPER_CPU_S = 60
"""Of a helper that answers once, py-spy above all, which takes 0.2 s for a rank. Chosen."""


PROBES_AT_ONCE = 4
"""Processes that ask file systems for one job: ranks that wait for one server learn the same from few of them."""
PROBE_AGAIN_NS = 5 * NS
"""A file system that answered is asked again after so long, while a thread still waits for it. Chosen."""


# --- Passes

SUSPICIOUS_SPREAD = 0.3
"""While a job is suspicious passes come so much earlier or later, as a part of their period: at even distances a job
whose steps last as long would be found at the same place of its step for seconds, and a few without a change are a
stall."""
LATE_PASS_PERIODS = 2.5
"""A pass that comes after so many regular periods says nothing about the time between."""
LATE_SUSPENDED_NS = 100_000_000
"""The node slept for longer than this between two passes (boottime ran, monotonic did not)."""
TICK_MEASURE_S = 0.1
"""The length of a tick is measured over ten of the longest (10 ms), where the count of jiffies does not show it."""
UNCONNECTED_PASSES = 16
"""Passes between two walks over a process without a TCP socket: what it inherited or was handed over is known after so
many."""
UNANNOUNCED_PASSES = 4
"""The same where nothing announces connect(2) and listen(2)."""
SOCKET_BYTES_A_PASS = 128 * 1024
"""Records of connections that a pass takes of the processes of one pod, bytes: 900 connections, 10 ms of CPU. What is
more comes with the next passes: 16,384 connections, which all pods but one must not wait for, took 0.25 s."""
SOCKET_WALK_NS_A_PASS = 5_000_000
"""CPU that a pass takes to walk the descriptors of one pod's processes: some 4,000 connections. Where a walk is not
over by then, the next pass continues it. Four processes of 16,500 sockets at rest took 0.08 s in each pass, and no
record."""
LINKS_A_PASS = 4096
"""Connections of a job that are gone through in a pass, on average, to find where they lead: some 8 ms. With more,
what changes is found passes later. A rank has some hundreds."""
LINKS_OF_A_RANK = 1024
"""Connections of one rank that a judgement takes: those with payload, those with bytes that wait, then the newest. A
rank has some hundreds; a mesh of all with all, one to each other rank."""


# --- Logs, metrics and tapes

CRASH_S = 30.0
"""Tracebacks of one crash: ranks that fail together, and launchers, have written theirs within so many seconds."""
FILE_TICK_NS = NS
"""Longer than any tick of a file system's clock: within one, two changes of a file have one time."""
FINDING_RECENT_S = 600.0
"""Older findings explain no fault of now."""
LATE_LINE_S = 3.0
"""What a program printed before it raised is in its log so long after the traceback at the latest: it is flushed when
the program ends. Chosen."""
LOG_LINGER_S = 60.0
"""The log of a pod that is gone may still explain a crash that is being decided on."""
LOG_TURN_BUSY_S = 1.0
"""CPU time after which a turn over the logs ends, and the next one continues with those that are left. Chosen."""
NODE_JOB_RULES = 64
"""Different job rules that the logs of one node are searched for: each pattern may take 256 KiB of the reader, which
has 48 MiB. Chosen."""
NAMESPACE_JOB_RULES = 32
"""Of those, the rules of one namespace: four policies with eight each, and room for another namespace. Chosen."""
LONGEST_PHASE_S = 3600.0
"""What a program announces for longer (`kcover: phase NAME up to T s`) is refused, unless the operator allows more: it
would hide a hang for as long. Chosen; an evaluation or a conversion of a checkpoint takes less."""
SAME_LINE_S = 60.0
"""A line that says the same about the same subject is written again no sooner. Chosen."""
METRICS_KEPT_S = 1.0
"""Metrics are made as text once in so long at most: half of the shortest scrape interval in use. Chosen."""
SCRAPER_SILENT_S = 5.0
"""A client that says nothing, or takes nothing, for so long is let go."""
FLUSH_PASSES = 10
"""A sensor that is killed leaves a tape that lacks the last passes; each flush costs compression a little."""


# --- Commands

LEAST_PERIOD_S = 0.5
"""Shortest period of an agent: passes over a whole node cost too much more often. Chosen."""
DOCTOR_SELF_TEST_S = 0.5
"""As `LOG_SELF_TEST_NS` of `hardware`, without passes."""
DOCTOR_NVML_S = 5.0
"""NVML's initialisation takes seconds where the driver does not keep its state. Chosen."""
PREFLIGHT_REQUEST_S = 10.0
"""A job must not wait for an API server that does not answer."""
PREFLIGHT_AGAIN_S = 10.0
"""Between two questions of a preflight that waits until its node passes. Chosen."""
PREFLIGHT_PASSES_S = 20.0
"""A preflight that lets its job start ends sooner: `PREFLIGHT_REQUEST_S`, and Python's start on a tenth of a core."""

SWEEP_PAUSE_NS = 10_000_000_000
"""Between two sweeps of the tables of threads and sockets: a full one takes 0.3 s."""
SWEEP_PAUSES = 10
"""After a sweep that took less than a second the next one may come so many times as long later: sweeps of small tables
cost little."""
RUN_STACKS_S = 1.0
"""Longest time to read the stacks of a job's ranks before it is ended on a verdict that was not announced. Chosen: with
the files it stays within `BUNDLE_LIMIT_S`, and a verdict of that kind has taken seconds of patience before.
"""

# --- Runs of several hosts that are joined (`run --join`)

JOIN_ANSWER_S = 10.0
"""A run that connects must have said who it is by then. Chosen."""
JOIN_SILENT_S = 20.0
"""A joined run, or the coordinator, that says nothing for so long is gone: each speaks every `JOIN_BEAT_S`."""
JOIN_BEAT_S = 3.0
"""Longest pause between two words of a joined run: reports count for 10 s."""
JOIN_TICK_S = 0.2
"""Pause between two judgements of all hosts' reports: a verdict must hold for 0.3 s."""
JOIN_AGAIN_S = 1.0
"""Pause before another attempt to reach the coordinator, which may be started later. Chosen."""
JOIN_ENDED_S = 30.0
"""All hosts must have ended their part of a job by then; else it is not started again. A kill takes 10 s at most."""
TRACED_STOPS_S = 2.0
"""A thread that does not stop for so long is in an uninterruptible call: the others stop within a slice. Chosen."""
TRACED_COMPUTES_S = 5.0
"""For so long a thread that is to be stopped is waited for until it computes; then it is stopped where it is. Chosen:
some steps of a training."""
TRACED_POLL_S = 0.001
"""Pause between two checks of whether it has stopped. Chosen."""
TRACED_TRIES = 20
"""A restartable sequence is a few instructions, so the second try is outside of it. Chosen."""
