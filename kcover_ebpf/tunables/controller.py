"""Tunables of the controller: pauses, and its budgets at the API server, with unit and reason.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

RETRY_S = 1.0
"""Pause after a first failure of a gang or node; doubled for each further one,"""
LONGEST_RETRY_S = 15.0
"""up to this."""
RESYNC_S = 5.0
"""Every gang is reconciled so often at least: time alone may change what is decided."""
REST_FACTOR = 4.0
"""A gang is not reconciled again for so many times the CPU time that it took last,"""
LONGEST_REST_S = 0.1
"""but no longer than this."""
EVENT_BURST_S = 0.01
"""A burst of events about one key is handled once."""
CALL_AGAIN_S = 1.0
"""The same call is not made again before: the pods that we know may be those from before it. Chosen."""
OWNER_FRESH_S = 0.05
"""The top owner is read again after so long where a step is about to change it,"""
OWNER_READ_S = 1.0
"""and no more often than this otherwise."""
YIELD_S = 1.0
"""A job waits for so long at most, until others are decided on, before it is ended."""
UNREADABLE_S = 30.0
"""A gang with an incident that a newer version wrote is left to that version."""
IDLE_WATCHED_S = 30.0
"""A gang without a fault is watched for so long after its last one."""
OWNER_REQUEST_S = 5.0
"""A request for an owner is given up: a kind may be served by a webhook that hangs."""
OWNER_SLOW_S = 2.0
"""An owner that cannot be read after so long did not answer; a refusal comes at once."""
KIND_SILENT_S = 15.0
"""A kind that did not answer is not asked for so long, so that it takes one worker at a time and not all. Chosen."""
OWNERS_KEPT_S = 60.0
"""What lies between a pod and its top owner hardly ever changes."""
KIND_CHECKED_S = 60.0
"""Whether we may restart jobs of an operator's kind is asked again so often: permissions give no event. Chosen."""
KIND_SETTLE_S = 0.2
"""Changes of JobKinds within so long are checked together. Chosen."""
REPORT_LATE_S = 2.0
"""A report is taken to be older than its arrival when it comes so much later than others of its node."""
WRITTEN_SPAN_S = 30.0
"""The least difference to the API server's clock in the last one to two spans counts. Each agent's Lease is written
every few seconds."""
TRIGGER_S = 180.0
"""An Event that asks for a recovery is not acted on when it is older."""
TRIGGERS_OF_ONE = 60
"""Events of one namespace that are looked up within `TRIGGER_S`: one every three seconds. Chosen."""
RESERVED_S = 30.0
"""What was decided is in the store by then."""
EVENT_SETTLE_S = 1.5
"""Nothing is sent earlier; what is published meanwhile takes its place."""
EVENT_PAUSE_S = 0.05
"""Between two Events: at most 20 a second."""
GC_PERIOD_S = 15.0
"""Between two searches for incidents that need not be kept."""
CULPRIT_PASS_S = 2.0
"""Between two comparisons of the conditions on culprits' pods with the open incidents: 1 ms for 1,000 incidents."""
CULPRITS_AGAIN_S = 900.0
"""A new leader removes the condition from the culprits of incidents that were closed within this time. Chosen."""
QUOTA_LOGGED_S = 60.0
"""That a namespace is full is logged no more often."""
OVER_SAID_S = 3600.0
"""That a namespace has more than what is kept of one is said no more often: an Event lives for an hour by default."""
COLLECT_AFTER_OBJECTS = 50_000
"""The default of 700 made a third of a turn over 5,120 ranks (1.47 s of CPU, 1.0 s without any); so it takes 1.09 s."""
TAINTS_LISTED_S = 30.0
"""Rules are listed again after so long: they matter to nodes whose health is reported every ten minutes."""
WITHDRAWAL_LEASE_S = 40.0
"""Before an uninstallation the lease is taken within so long: twice what its holder may act for, and slow answers."""
WITHDRAWAL_TRIES = 3
"""What could not be undone, as after a conflict, is tried so often,"""
WITHDRAWAL_AGAIN_S = 2.0
"""after a pause of so long. Both chosen."""

PAGE_KEPT_S = 1.0
"""The page of the controller is made so often at most, whoever asks: its numbers are whole seconds. Chosen."""
