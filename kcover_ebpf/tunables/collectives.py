"""Tunables of what NCCL and PyTorch know of collective operations: when they are asked, and what is taken for slow.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

# --- NCCL and PyTorch's recorder

NCCL_FIRST_PAUSE_S = 0.8
"""A process is searched for NCCL at each pass of its first seconds,"""
NCCL_PAUSE_SHARE = 0.1
"""then after this part of its age: each search reads all its mappings. PyTorch maps it some seconds before the first
communicator."""
NCCL_ANSWER_PAUSE_NS = 700_000_000
"""As between the first answers of RAS: counts of ranks that train move several times in between."""
RAS_FIRST_PAUSES_S = (0.7, 0.7, 1.0, 2.0, 5.0)
"""Between the first answers of NCCL's RAS about one stall: three of them take 5 s,"""
RAS_LATER_PAUSE_S = 30.0
"""and between all later ones. Chosen."""
RAS_TURN_S = 15.0
"""Three answers take 5 s, and a verdict that rests on them is acted on in less."""
RECORDER_ANSWER_S = 20.0
"""A rank reads its pipe once a second; to find the names of its frames took PyTorch 2.14 some 8 s of CPU."""
RECORDER_PAUSE_S = 60.0
"""Between two rounds of questions: a job that stalls now and then is not asked each time."""
RECORDER_RETRY_S = 0.3
"""Between two readings whether a rank has answered. Chosen."""


# --- NCCL Inspector

LEAST_RUNS = 20
"""Operations: fewer of a kind and size show no more than chance; at two a step that is ten steps."""
SLOW_FACTOR = 1.3
"""Times as long as before, or as in the other groups: the slow-down that the judge of ranks names as well."""
LATE_SHARE = 0.8
"""Of the operations of a group, in which one rank must be the last to arrive: among equals each is now and then."""
LATE_PART_SHARE = 0.1
"""Of the time of an operation, for which the others wait for the last rank: less is jitter."""
LATE_LEAST_S = 0.001
"""Seconds of that wait: kernels of NCCL begin some tens of microseconds apart on a healthy node."""

MOST_FILES = 16_384
"""Files of a folder: one a process, so the ranks of the largest jobs."""
MOST_LISTED = 65_536
"""Names of its folder that are read, of which the first `MOST_FILES` in order are opened: a job may write any number.
Chosen."""
MOST_TAIL_BYTES = 1 << 20
"""Of each file: some 2,500 operations of 400 bytes, and not the whole of a long training."""
