"""Numbers about collective operations, as NCCL Inspector writes them: what is taken for slow."""

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
