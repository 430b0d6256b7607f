"""Tunables of a gang's verdict and restart: ages of reports and lengths of steps, each with unit and reason.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

# --- Reports of several nodes

SNAPSHOT_FRESH_S = 10.0
"""Seconds after which a snapshot of stalled ranks that was not renewed says nothing about now. The Lease of an agent
names a longer time if the cluster has many nodes (`agent.reports.report_pace`)."""
AGENT_SILENT_S = 45.0
"""Seconds without a report after which an agent counts as absent: it reports every 30 s, and at once when its ranks
stall."""
REPORTS_APART_S = 0.5
"""Seconds by which two moments on different nodes must differ before they are ordered: reports travel, and clocks are
read at different moments."""
REPORTS_VAGUE_S = 2.0
"""Seconds added to `REPORTS_APART_S` where the delay of a report is not known."""
DELAY_SPAN_S = 300.0
"""Seconds in a span of delay measurements. The least delay of the last one to two spans counts. Clocks drift by 50 ppm,
which is 30 ms in two spans."""
LONGEST_DELAY_S = 5.0
"""Seconds of the longest plausible delay of a report. One that seems later was sent again unchanged (its ranks are
stopped by us), or a clock was set."""
STALLED_BESIDE_GONE_S = 10.0
"""Seconds without progress after which ranks are taken to wait for a node that is gone: its kubelet has been silent for
40 s by then."""
AGENT_GONE_S = 60.0
"""Seconds after which a missing agent is gone: one that is only restarted is back before."""
LOG_BEFORE_FAULT_S = 60.0
"""Seconds before a fault within which log lines may show its cause: retries of storage and networks last that long."""
TRACEBACK_BEFORE_S = 30.0
"""Seconds before the kernel announced a crash within which a traceback belongs to it."""
TRACEBACK_AFTER_S = 3.0
"""Seconds after that announcement within which a traceback belongs to the crash: a rank needs time to end, and a
launcher to copy its output. An exception that was caught and logged ends nothing."""

# --- When something is done about a verdict

VERDICT_STABLE_S = 0.3
"""Seconds for which a verdict made from several reports must stay the same: the reports arrive at different moments."""
UNEXPLAINED_S = 2.0
"""Seconds since a gang's wait last had a known reason, before a hang is inferred from what follows: twice the time
between two reports of one node with different details (`agent.DETAILS_GAP_S`)."""
LOGS_AGAIN_S = 0.5
"""Seconds between two checks for the log of a second crash: agents read logs every 0.5 s."""
FAULT_OVER_S = 5.0
"""Seconds without a mention in any report after which a fault is over."""
CRASH_LOGS_S = 3.0
"""Seconds that the log of a job's second crash may take to arrive: agents read logs every 0.5 s."""
CRASH_READ_S = 1.0
"""Seconds after a crash by which its log was read to the end: agents read every 0.5 s, and the last flush is
included."""
CRASH_AT_START_S = 300.0
"""Seconds from start to failure below which a program that logged no step fails while it loads and builds its model, if
each start fails this way."""

# --- Orders and steps of a restart

STOP_EXPIRES_S = 10.0
"""Seconds within which an agent carries out an order to stop ranks. It resumes them then if no order to kill
arrived."""
KILL_EXPIRES_S = 15.0
"""Seconds after which an order to kill expires: in large gangs, agents receive it later than an order to stop."""
SAVE_CHECKED_S = 1.0
"""Seconds between two checks of whether the logs report a saved checkpoint: agents read logs every 0.5 s."""
RESUME_EXPIRES_S = 30.0
"""Seconds after which orders expire that are harmless when late: to resume, and to kill what is terminating anyway."""
BUNDLE_WITHIN_S = 30.0
"""Seconds after a fault by which its evidence must be saved: later it says little about the fault."""
CLOCKS_APART_S = 3.0
"""Seconds by which the clocks of nodes and controller may differ: an order to stop ends after 10 s by either clock."""
STOP_S = 3.0
"""Seconds within which all nodes must have stopped their ranks, before `STOP_EACH_S` is added."""
STOP_EACH_S = 0.003
"""Seconds added to `STOP_S` for each node: reports of 1,000 nodes take time to be written and read."""
LONGEST_STOP_S = 7.0
"""Seconds after an order to stop by which an order to kill must follow: agents resume their ranks after 10 s by clocks
that may be 3 s ahead, and a kill that reaches only some nodes in time ends half of a gang."""
RESUME_S = 3.0
"""Seconds within which agents must have resumed the ranks that they stopped; then the pods are replaced."""
MOST_MOVED = 16
"""Most pods of one gang that move while the others stay: their uids must fit into the detail of an action. Chosen."""
STOP_RENEWED_S = 4.0
"""Seconds before its expiry at which a stop order is renewed while pods move: agents resume their ranks when it
expires."""
MOVED_S = 40.0
"""Seconds for which the other pods stay stopped until the moving pods have new addresses: a batch Job waits 10 s before
it recreates a pod, and its kubelet 2 s."""
KUBELET_RESTART_S = 30.0
"""Seconds within which a kubelet restarts a pod in place: usually two; fifteen were measured on an overloaded host."""
RESTARTED_BY_ITSELF_S = 5.0
"""Seconds after a crash within which a gang that restarts by itself is running again."""
LARGE_GANG_PODS = 20
"""Pods from which on one delete-collection request marks them faster than their controller does."""
PODS_PER_REQUEST = 64
"""Pods deleted by one request."""
REQUESTS_AT_ONCE = 8
"""Delete requests in progress at once, for gangs larger than `PODS_PER_REQUEST`."""
JOB_CONTROLLER_S = 120.0
"""Seconds after which a job controller that has deleted nothing does not work."""
ORDER_RENEWED_BEFORE_S = 10.0
"""Seconds before its expiry at which an order to kill is renewed while processes are left."""
GRACE_MARGIN_S = 15.0
"""Seconds added to a pod's grace period. Measured: enough for everything except a process that cannot be killed."""
PROVEN_S = 10.0
"""Seconds after which a pod whose processes were killed, but which still exists, is in state D: others are gone within
3 s (measured). Where new pods do not need its name, it is not waited for. Chosen."""
JOB_CONTROLLER_ACTS_S = 10.0
"""Seconds within which a controller recreates pods once its leader, or a command, asks for it."""
SLOW_RESCHEDULE_S = 600.0
"""Seconds after which pods that do not run are reported as slow. The restart still waits for them."""
CALL_CHECKED_S = 1.0
"""Seconds after a request to the API server at which a step runs again, if no event about it arrived before."""
CALL_REFUSED_S = 60.0
"""Seconds for which a call that the API server refuses is tried again: a webhook that is being updated is back by then,
and a policy or a missing permission stays. Chosen."""
REFUSED_AGAIN_S = 2.0
"""Seconds between these attempts: ranks that are stopped meanwhile need another order every 6 s."""
DELETION_CHECKED_S = 2.0
"""Seconds between runs of a step while a job's own controller deletes pods."""
PODS_CHECKED_S = 5.0
"""Seconds between runs of a step while pods become ready. Their changes are events; this is for a missed one.
Chosen."""
NEW_PODS_CHECKED_S = 10.0
"""Seconds between runs of a step while new pods are scheduled. Chosen."""
STUCK_CHECKED_S = 30.0
"""Seconds between runs of a step while processes cannot be killed. Chosen."""
RECOVERED_UNSEEN_S = 60.0
"""Seconds of readiness after which pods count as recovered where no agent can see progress."""

# --- What is kept, and for how long

INCIDENT_KEPT_S = 30 * 86400.0
"""Seconds for which a closed incident is kept: a month, for statistics and simulated policies. Chosen."""
INCIDENTS_PER_JOB = 60
"""Closed incidents kept for each job name in a namespace, newest first. Chosen."""
INCIDENTS_PER_NAMESPACE = 500
"""Closed incidents kept for each namespace, newest first: job names may always be new, and one takes 10 KB in etcd."""
RESTART_COUNTED_S = 30 * 86400.0
"""Seconds for which a restart is counted, whatever window a policy asks for."""
FAULT_SILENT_S = 3600.0
"""Seconds without a mention in any report after which a fault is taken to be over."""
RECOVERED_STABLE_S = 10.0
"""Seconds for which ranks must train to count as recovered: a job may move once and stop again."""

# --- Another policy, tried on past incidents

SIMULATED_S = 2.0
"""Seconds by which a recorded and a simulated time may differ and still be the same: the controller checks every
second. Chosen."""

# --- Ranks that ended unreported

END_REPORTED_S = 20.0
"""Seconds after an end by which a present agent has reported it: it reports within 2 s, and a killed agent runs again
within 10 s."""
END_RECORDED_S = 900.0
"""Seconds after which an unreported end is no longer recorded: a deleted report is written again after 600 s."""
END_RAN_S = 10.0
"""Seconds that a rank must have run: one that ended sooner had hardly imported its framework. Chosen."""
END_BEFORE_INCIDENT_S = 15.0
"""Seconds before the fault of an incident within which an end belongs to it: the clocks of two nodes may be 10 s
apart."""
END_AFTER_INCIDENT_S = 10.0
"""Seconds after the last change of an incident within which an end belongs to it."""
ENDS_TOGETHER_S = 30.0
"""Seconds within which several ends have one cause: peers notice a reset connection at once. Chosen."""

# --- Nodes

INSPECTIONS_FAILED = 2
"""Inspections in a row that must fail: a single one may have met a bad moment."""
OFFENDER_REMEMBERED_S = 30 * 86400.0
"""Seconds for which a node that was cordoned is a repeat offender: failing hardware fails again within weeks."""
REPAIR_SETTLE_S = 1800.0
"""Seconds between two repairs of one node: a reboot of a GPU node takes ten minutes, and inspections that show whether
it helped run every ten. Chosen."""
REPAIR_DAY_S = 86400.0
"""Seconds over which the repairs of all nodes count against the operator's limit."""
CORDON_DOUBLINGS = 6
"""Doublings of a cordon's length, 64 times: at three inspections of ten minutes each, a day and a half. By then a
person has worked on it."""
FAULT_CONFIRMED_S = 120.0
"""Seconds before a cordon within which an inspection may have confirmed the fault: the fault triggers one at once."""
SUSPECT_CORDON_S = 4 * 3600.0
"""Seconds of a cordon where no device of the node is known to be unfit: by then a person on call has seen it, and a
node that was not at fault does not use up the breaker for days."""
SIMULATED_STEP_S = 1.0
"""Seconds between two decisions about a simulated incident, at least."""
MOVE_GRACE_S = 1
"""Seconds of grace for a pod that is moved: its ranks are stopped already and save nothing."""
ADDRESS_CHECKED_S = 0.5
"""Seconds between two reads of the address of a moved pod."""
