"""Tunables of `trace`: how long it observes a job, and what it waits for, with unit and reason.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

PASSES = 12
"""A loop in place can only be recognized by several passes: about three seconds."""
PATIENT_S = 20.0
"""Seconds for which a silent job is observed that cannot be called hung yet."""
STORAGE_S = 10.0
"""Seconds of observation that distinguish storage that answers no process from slow storage."""
STALL_S = 3.0
"""Seconds of silence that count as a stall though the job was never seen healthy: the user suspects a hang, and a run
of `trace` ends nothing. Below the 5 s after which a data loader's reader checks whether its workers live."""
BUSY_S = 10.0
"""Seconds for which ranks that use a CPU are observed, to distinguish those that wait from those that work."""
ALIKE_PASSES = 5
"""Passes in a row with the same finding after which a run ends. Chosen."""
FAULT_PASSES = 4
"""Passes with one fault that end a run too, whatever was found in between: a rank that checks its workers every few
seconds seems alive for a moment each time."""
TABLE_PASSES = 2
"""Passes after which the table can be shown: a share of a CPU needs two samples."""
HELPERS_S = 4.0
"""Seconds that the programs that read stacks may take. They run during the passes, which take 3 s; what they have not
read by then is unread."""
LIVE_S = 2.0
"""Between two tables with --follow. Chosen."""
READING_S = 0.3
"""Seconds for the readings of one pass; threads that are stuck in a call are left out then."""
PIPE_SEARCH_S = 0.2
"""For each search of /proc for the other end of a pipe. Chosen."""
SHOWN_BUSY_SHARE = 0.05
"""Share of a CPU from which on a thread is shown by itself. Chosen."""
NEVER_LATE_S = 60.0
"""Seconds of period from which lateness counts. A run of `trace` judges by the kernel's own times, so what it misses
between two passes is no loss."""
BEAT_S = 5.0
"""Seconds between two lines that a remote client sends as a sign of life."""
BEAT_MISSED_S = 4 * BEAT_S
"""Seconds without such a line after which the run ends: no client waits for it."""
DUMP_POLL_S = 0.05
"""Between two checks whether the core dump of a GPU was written. Chosen."""

# --- What one run of `trace` takes as a sign

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
ASKED_PART = 5
"""`trace`: a thread that waits busily is found polling at one in this many passes at least, and in no other call."""
HELPED_SHARE = 0.05
"""Share of a CPU used by the other threads of its process from which on a thread may wait for those."""
