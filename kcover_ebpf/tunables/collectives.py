"""Tunables of what NCCL and PyTorch report about collective operations: when they are asked, and what counts as slow.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

# --- NCCL and PyTorch's recorder

NCCL_FIRST_PAUSE_S = 0.8
"""Seconds of the first pause between searches of a process for NCCL: one at each pass of its first seconds."""
NCCL_PAUSE_SHARE = 0.1
"""Pause between later searches, as a share of the process's age: each search reads all its mappings. PyTorch maps NCCL
some seconds before the first communicator."""
NCCL_ANSWER_PAUSE_NS = 700_000_000
"""Nanoseconds between two answers of NCCL's counts, as between the first answers of RAS: the counts of ranks that train
move several times in between."""
RAS_FIRST_PAUSES_S = (0.7, 0.7, 1.0, 2.0, 5.0)
"""Seconds between the first answers of NCCL's RAS about one stall: three answers take 5 s."""
RAS_LATER_PAUSE_S = 30.0
"""Seconds between all later answers. Chosen."""
RAS_TURN_S = 15.0
"""Seconds of one stall's turn at RAS: three answers take 5 s, and a verdict that rests on them is acted on sooner than
this."""
RECORDER_ANSWER_S = 20.0
"""Seconds to wait for a recorder's answer: a rank reads its pipe once a second, and PyTorch 2.14 took 8 s of CPU to
find the names of its frames."""
RECORDER_PAUSE_S = 60.0
"""Seconds between two rounds of requests: a job that stalls now and then is not asked each time."""
RECORDER_RETRY_S = 0.3
"""Seconds between two checks of whether a rank has answered. Chosen."""


# --- NCCL Inspector

LEAST_RUNS = 20
"""Operations of one kind and size below which a difference may be chance; at two a step this is ten steps."""
SLOW_FACTOR = 1.3
"""Factor on the earlier duration, or on that of the other groups, from which on operations are slow: the slow-down at
which the judge of ranks names a rank as well."""
LATE_SHARE = 0.8
"""Share of a group's operations in which one rank must arrive last: among equals each is last now and then."""
LATE_PART_SHARE = 0.1
"""Share of an operation's time for which the others wait for the last rank: less is jitter."""
LATE_LEAST_S = 0.001
"""Seconds of that wait: on a healthy node, kernels of NCCL begin some tens of microseconds apart."""

MOST_FILES = 16_384
"""Files read from one folder: one per process, so the ranks of the largest jobs."""
MOST_LISTED = 65_536
"""File names read from one folder; of these the first `MOST_FILES` in order are opened. A job may write any number.
Chosen."""
MOST_TAIL_BYTES = 1 << 20
"""Bytes read from the end of each file: some 2,500 operations of 400 bytes, not all of a long training."""
INSPECTOR_FILES = 256
"""Files read at most while a job is slow: 16 MiB, some 40,000 operations, a second of CPU time."""
INSPECTOR_TAIL_BYTES = 64 << 10
"""Bytes read from the end of each of these files: some 160 operations of 400 bytes."""
INSPECTOR_RANKS = 16
"""Ranks of a host whose folders are looked up at most: most ranks share one folder."""
INSPECTOR_PAUSE_S = 60.0
"""Seconds between two readings for one job. Chosen."""
INSPECTOR_FRESH_S = 150.0
"""Seconds after a reading for which its findings are evidence: two pauses and the time of a reading. Chosen."""
INSPECTOR_SHOWN = 2
"""Findings that a verdict shows at most."""
