"""Tunables of the controller: pauses, and its budgets at the API server, with unit and reason.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

RETRY_S = 1.0
"""Seconds of pause after the first failure of a gang or node; doubled for each further one."""
LONGEST_RETRY_S = 15.0
"""Seconds of the longest pause between retries."""
RESYNC_S = 5.0
"""Seconds between two reconciliations of a gang, at most: time alone may change a decision."""
REST_FACTOR = 4.0
"""Factor on the CPU time of a gang's last reconciliation: the pause before its next one."""
LONGEST_REST_S = 0.1
"""Seconds of the longest such pause."""
EVENT_BURST_S = 0.01
"""Seconds within which several events about one key are handled once."""
CALL_AGAIN_S = 1.0
"""Seconds before the same call is made again: the pods that we know may predate the first call. Chosen."""
OWNER_FRESH_S = 0.05
"""Seconds after which the top owner is read again if a step is about to change it."""
OWNER_READ_S = 1.0
"""Seconds between two reads of the top owner otherwise."""
YIELD_S = 1.0
"""Seconds for which the end of a job waits, at most, until other jobs are decided on."""
UNREADABLE_S = 30.0
"""Seconds for which a gang with an incident written by a newer version is left to that version."""
IDLE_WATCHED_S = 30.0
"""Seconds for which a gang is watched after its last fault."""
OWNER_REQUEST_S = 5.0
"""Seconds after which a request for an owner is given up: a webhook that serves its kind may hang."""
OWNER_SLOW_S = 2.0
"""Seconds after which an owner that could not be read counts as unanswered; a refusal comes at once."""
KIND_SILENT_S = 15.0
"""Seconds for which an unresponsive kind is not requested, so that it blocks one worker at a time and not all.
Chosen."""
OWNERS_KEPT_S = 60.0
"""Seconds for which the owners between a pod and its top owner are cached: they hardly ever change."""
KIND_CHECKED_S = 60.0
"""Seconds between two checks of whether we may restart jobs of an operator's kind: permissions produce no event.
Chosen."""
KIND_SETTLE_S = 0.2
"""Seconds within which changes of JobKinds are checked together. Chosen."""
REPORT_LATE_S = 2.0
"""Seconds by which a report must arrive later than others of its node to be dated before its arrival."""
WRITTEN_SPAN_S = 30.0
"""Seconds in a span of clock measurements. The least difference to the API server's clock in the last one to two spans
counts. Each agent's Lease is written every few seconds."""
TRIGGER_S = 180.0
"""Seconds after which an Event that asks for a recovery is too old to be acted on."""
TRIGGERS_OF_ONE = 60
"""Events looked up for each namespace within `TRIGGER_S`: one every three seconds. Chosen."""
RESERVED_S = 30.0
"""Seconds by which a decision is in the store."""
EVENT_SETTLE_S = 1.5
"""Seconds before an Event is sent; a newer one published meanwhile replaces it."""
EVENT_PAUSE_S = 0.05
"""Seconds between two Events: at most 20 a second."""
GC_PERIOD_S = 15.0
"""Seconds between two searches for incidents that need not be kept."""
CULPRIT_PASS_S = 2.0
"""Seconds between two comparisons of the conditions on culprits' pods with open incidents: 1 ms for 1,000 incidents."""
CULPRITS_AGAIN_S = 900.0
"""Seconds since the close of an incident within which a new leader removes the condition from its culprits. Chosen."""
QUOTA_LOGGED_S = 60.0
"""Seconds between two log lines that a namespace is full."""
OVER_SAID_S = 3600.0
"""Seconds between two Events that a namespace is over its bounds: an Event lives for an hour by default."""
COLLECT_AFTER_OBJECTS = 50_000
"""Allocations between two garbage collections. The default of 700 took a third of a pass over 5,120 ranks (1.47 s of
CPU, 1.0 s without any collection); with this it takes 1.09 s."""
TAINTS_LISTED_S = 30.0
"""Seconds between two listings of taint rules: they matter to nodes whose health is reported every ten minutes."""
WITHDRAWAL_LEASE_S = 40.0
"""Seconds within which an uninstallation takes the lease: twice what its holder may act for, plus slow answers."""
WITHDRAWAL_TRIES = 3
"""Attempts to undo what could not be undone, for example after a conflict. Chosen."""
WITHDRAWAL_AGAIN_S = 2.0
"""Seconds between those attempts. Chosen."""

PAGE_KEPT_S = 1.0
"""Seconds for which a rendered page of the controller is served to all clients: its numbers are whole seconds.
Chosen."""
