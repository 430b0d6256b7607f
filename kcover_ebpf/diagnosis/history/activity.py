"""What a process does that an endless loop does not do. Pure.

A loop that only computes makes no call, uses no new memory and begins nothing. One that allocates and frees the same
memory again and again is such a loop too: the C library reuses it without a fault, and what it gives back to the
kernel it has to fault in again.
"""

from __future__ import annotations

from kcover_ebpf.facts.kernel import ProcessTotals, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable

_IDLE_CALLS = frozenset({SyscallFamily.NONE, SyscallFamily.FUTEX})
"""Calls in which a thread that only computes is found, if the threads of its program take turns."""


def is_active(
    earlier_sample: ThreadSample, sample: ThreadSample, table: SyscallTable, *, sides_run: bool
) -> bool:
    """True if a lead thread did more than use a CPU between two samples.

    `sides_run`: its side threads use a CPU too, so it may sleep for the interpreter's lock.
    """
    if table.family(sample.syscall) not in _IDLE_CALLS:
        return True
    if sample.minor_faults != earlier_sample.minor_faults:
        return True
    if sample.call_chars != earlier_sample.call_chars:
        return True
    return sample.voluntary_count != earlier_sample.voluntary_count and not sides_run


def is_changed(earlier_totals: ProcessTotals, totals: ProcessTotals) -> bool:
    """True if a process waited for a page, or began or ended a thread, between two totals."""
    if totals.thread_count != earlier_totals.thread_count:
        return True
    return totals.major_faults != earlier_totals.major_faults
