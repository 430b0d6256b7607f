"""Tunables of a gang's verdict and restart: how old a report may be, how long a step may take, with unit and reason.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

# --- Reports of several nodes

SNAPSHOT_FRESH_S = 10.0
"""A snapshot of stalled ranks that was not renewed for so long says nothing about now. An agent with a Lease says
itself how long: the more nodes there are, the longer (`agent.reports.report_pace`)."""
AGENT_SILENT_S = 45.0
"""An agent that has not been heard for so long is not there: it is every 30 s, and at once when its ranks stall."""
REPORTS_APART_S = 0.5
"""Reports travel and clocks are read at different moments: what is closer than this is not ordered."""
REPORTS_VAGUE_S = 2.0
"""The same on top of it, where it is not known how long a report was on its way."""
DELAY_SPAN_S = 300.0
"""The least difference of the last one to two spans counts: clocks drift by 50 ppm, so 30 ms in two of them."""
LONGEST_DELAY_S = 5.0
"""A report that seems later is one that was sent again as it was (its ranks are stopped by us), or a clock was set."""
WORK_BELIEVED_S = 60.0
"""Ranks of one node may work (evaluate, load, compile) while all others wait for them: that is no fault for so long.
Nodes also stall at different moments, for each has its own threshold."""
STALLED_BESIDE_GONE_S = 10.0
"""Ranks that make no progress for so long beside a node that is gone wait for it: its kubelet has been silent for 40
s."""
AGENT_GONE_S = 60.0
"""An agent that is only restarted is back before."""
LOG_BEFORE_FAULT_S = 60.0
"""What a log shows so long before a fault may be its cause: retries of storage and networks last that long."""
TRACEBACK_BEFORE_S = 30.0
"""A traceback belongs to a crash if it was written so long before the kernel announced that,"""
TRACEBACK_AFTER_S = 3.0
"""or so long after: a rank takes its time to end, and a launcher to copy what it wrote. One that is caught and
logged ends nothing."""

# --- When something is done about a verdict

VERDICT_STABLE_S = 0.3
"""A verdict put together from several reports must stay the same for so long: they come at different moments."""
LOGS_AGAIN_S = 0.5
"""Pause while the log of a second crash is awaited: agents read every 0.5 s."""
FAULT_OVER_S = 5.0
"""A fault is over when no report has mentioned it for so long."""
CRASH_LOGS_S = 3.0
"""After the second crash of a job, so long may what its log says take to get here: agents read every 0.5 s."""
CRASH_READ_S = 1.0
"""So long after a crash its log was read to the end: agents read every 0.5 s, and what was flushed last is in it."""
CRASH_AT_START_S = 300.0
"""A program that logged no step and fails this soon in each start fails while it loads and builds its model."""

# --- Orders and steps of a restart

STOP_EXPIRES_S = 10.0
"""An agent carries out an order to stop ranks within so long and releases what it stopped if no order to kill came."""
KILL_EXPIRES_S = 15.0
"""The same of an order to kill: what agents see of it takes longer in large gangs."""
SAVE_CHECKED_S = 1.0
"""Between two readings of what the logs say of a checkpoint: agents read them every 0.5 s."""
RESUME_EXPIRES_S = 30.0
"""The same of orders that do no harm late: to resume, and to kill what is terminating anyway."""
BUNDLE_WITHIN_S = 30.0
"""Evidence that is kept later says little about the fault."""
CLOCKS_APART_S = 3.0
"""How much the clocks of nodes and of the controller may differ: an order to stop ends after 10 s by either."""
STOP_S = 3.0
"""All nodes must have stopped their ranks by then,"""
STOP_EACH_S = 0.003
"""and so much later for each of them: what 1,000 nodes say takes its time to be written and read."""
LONGEST_STOP_S = 7.0
"""Agents let go of what they stopped after 10 s; the order to kill must reach them before."""
RESUME_S = 3.0
"""Agents must have resumed the ranks that they stopped by then; afterwards the pods are replaced."""
MOST_MOVED = 16
"""Pods of one gang that move while the others stay: their uids must fit into the detail of an action. Chosen."""
STOP_RENEWED_S = 4.0
"""An order to stop is given anew so long before it expires, while pods move: agents let go of ranks at its end."""
MOVED_S = 40.0
"""The others are kept stopped for so long at most until the pods that move have new addresses: a batch Job waits 10 s
before it makes a pod again, and its kubelet 2 s."""
KUBELET_RESTART_S = 30.0
"""A kubelet restarts a pod in place within two seconds; one on an overloaded host was seen to take fifteen."""
RESTARTED_BY_ITSELF_S = 5.0
"""A gang that restarts by itself after a crash is running again by then."""
LARGE_GANG_PODS = 20
"""From so many pods on one collective request marks them faster than their controller does."""
PODS_PER_REQUEST = 64
"""Pods of one request,"""
REQUESTS_AT_ONCE = 8
"""and requests at once, where a gang is larger still."""
JOB_CONTROLLER_S = 120.0
"""A job controller that has not deleted anything by then does not work."""
ORDER_RENEWED_BEFORE_S = 10.0
"""An order to kill is given anew so long before it expires, while processes are left."""
GRACE_MARGIN_S = 15.0
"""Added to the grace period: measured, enough for everything but a process that cannot be killed."""
PROVEN_S = 10.0
"""A pod whose processes were killed goes within 3 s (measured); one that is there after so long is in state D, and
no reason to wait for where new pods do not need its name. Chosen."""
JOB_CONTROLLER_ACTS_S = 10.0
"""A controller that recreates pods when its leader, or a command, asks for it does so within this time."""
SLOW_RESCHEDULE_S = 600.0
"""Pods that are not running by then are reported as slow; the restart is still waited for."""
CALL_CHECKED_S = 1.0
"""After a request to the API server a step is run again so soon, if no event about it comes first,"""
DELETION_CHECKED_S = 2.0
"""so much later after one that a job's own controller carries out,"""
PODS_CHECKED_S = 5.0
"""so late while pods become ready, whose changes are events: it is for one that was missed (chosen),"""
NEW_PODS_CHECKED_S = 10.0
"""the same while new ones are scheduled (chosen),"""
STUCK_CHECKED_S = 30.0
"""and while processes cannot be killed. Chosen."""
RECOVERED_UNSEEN_S = 60.0
"""Pods that stayed ready for so long count as recovered where no agent can see progress."""

# --- What is kept, and for how long

INCIDENT_KEPT_S = 30 * 86400.0
"""A closed incident is kept for a month, which statistics and a simulated policy look back on. Chosen."""
INCIDENTS_PER_JOB = 60
"""Of the jobs of one name in a namespace, the newest so many closed incidents are kept. Chosen."""
INCIDENTS_PER_NAMESPACE = 500
"""Of a namespace the newest so many: jobs may have ever new names, and etcd keeps some 10 KB of each."""
RESTART_COUNTED_S = 30 * 86400.0
"""A restart is counted no longer, whatever window a policy asks for."""
FAULT_SILENT_S = 3600.0
"""A fault that no report has mentioned for so long is taken to be over."""
RECOVERED_STABLE_S = 10.0
"""Ranks that train must do so for a while: a job may move once and stop again."""

# --- Another policy, tried on past incidents

SIMULATED_S = 2.0
"""What a record and a simulation say less apart than this is the same: the controller asks every second. Chosen."""

# --- Ranks that ended unreported

END_REPORTED_S = 20.0
"""An agent that is there reports an end within 2 s, and one that was killed is there again within 10 s."""
END_RECORDED_S = 900.0
"""What ended longer ago is not recorded: a deleted report is there again after 600 s."""
END_RAN_S = 10.0
"""Who ended sooner had hardly imported its framework. Chosen."""
END_BEFORE_INCIDENT_S = 15.0
"""An end so long before the fault of an incident belongs to it: clocks of two nodes, which may be 10 s apart."""
END_AFTER_INCIDENT_S = 10.0
"""The same after its last change."""
ENDS_TOGETHER_S = 30.0
"""Ends so close to each other have one cause: peers notice a reset connection at once. Chosen."""

# --- Nodes

INSPECTIONS_FAILED = 2
"""Inspections in a row that must fail: one may have met a moment that was bad."""
OFFENDER_REMEMBERED_S = 30 * 86400.0
"""A node that was cordoned is a repeat offender for so long: failing hardware fails again within weeks."""
REPAIR_SETTLE_S = 1800.0
"""After a repair was begun the next one on that node waits so long: a reboot of a GPU node takes ten minutes, and
inspections that show whether it helped come every ten. Chosen."""
REPAIR_DAY_S = 86400.0
"""Over which repairs of all nodes are counted against the operator's limit."""
CORDON_DOUBLINGS = 6
"""64 times: at three inspections of ten minutes a day and a half. Beyond, a person has been busy with it."""
FAULT_CONFIRMED_S = 120.0
"""An inspection may have shown the fault so long before the cordon: the fault asks for one at once."""
SUSPECT_CORDON_S = 4 * 3600.0
"""A node is cordoned so long where no device of it is known to be unfit: a person on call has seen it by then, and
what was no fault of the node does not use up the breaker for days."""
SIMULATED_STEP_S = 1.0
"""From one question about a simulated incident to the next, at least."""
MOVE_GRACE_S = 1
"""Grace period of a pod that is moved: its ranks are stopped already, and save nothing."""
ADDRESS_CHECKED_S = 0.5
"""Between two readings of the address of a pod that was moved."""
