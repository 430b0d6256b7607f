"""Tunables of `trace`: how long it observes a job, and what it waits for, with unit and reason.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

PASSES = 12
"""A loop in place can only be recognized by several passes: about three seconds."""
PATIENT_S = 20.0
"""A job that is silent, but not for long enough yet to be called hung, is observed for so long."""
STORAGE_S = 10.0
"""Storage that answers no process is distinguished from slow storage by watching for so long."""
STALL_S = 3.0
"""A silence that counts as a stall though the job was never seen healthy: the person who asks thinks it is stuck,
and a run ends nothing. Below the 5 s after which a data loader's reader asks whether its workers live."""
BUSY_S = 10.0
"""Ranks that burn a CPU are observed for so long, to distinguish those that wait from those that work."""
ALIKE_PASSES = 5
"""A run ends when so many passes in a row had the same finding. Chosen."""
FAULT_PASSES = 4
"""So many with one fault end it too, whatever was found in between: a rank that asks every few seconds whether its
workers live seems alive for a moment each time."""
TABLE_PASSES = 2
"""Passes after which the table can be shown: a share of a CPU needs two samples."""
HELPERS_S = 4.0
"""The programs that read stacks run beside the passes, which take 3 s; what they have not read by then is unread."""
LIVE_S = 2.0
"""Between two tables with --follow. Chosen."""
READING_S = 0.3
"""For the readings of one pass; threads that are stuck in a call are left out by then."""
PIPE_SEARCH_S = 0.2
"""For each search of /proc for the other end of a pipe. Chosen."""
SHOWN_BUSY_SHARE = 0.05
"""Share of a CPU from which on a thread is shown by itself. Chosen."""
NEVER_LATE_S = 60.0
"""Period from which lateness counts: a run judges by the kernel's own times, so what a starved one misses between two
passes is no loss."""
BEAT_S = 5.0
"""Who asked from afar sends a line so often."""
BEAT_MISSED_S = 4 * BEAT_S
"""Without one for so long the run ends: no asker waits for it."""
DUMP_POLL_S = 0.05
"""Between two checks whether the core dump of a GPU was written. Chosen."""
