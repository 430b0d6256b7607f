"""What a futex word shows about the lock around it."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.facts.futex import Lock, describe

PRIVATE, BITSET, REALTIME, PI, REQUEUE = 0x80, 9, 256, 6, 11
THREADS = {7: 4711, 8: 4712}
"""Number in the container's pid namespace -> number on the host."""


def mutex(lock: int = 2, owner: int = 8, users: int = 1, kind: int = 0) -> bytes:
    return struct.pack("=IIiIi", lock, 0, owner, users, kind) + bytes(4)


def semaphore(value: int = 0, waiters: int = 1) -> bytes:
    return struct.pack("=II", value, waiters) + bytes(16)


CASES = {
    "a mutex names its owner, by the host's number": (
        PRIVATE,
        2,
        mutex(),
        Lock("mutex", True, 4712),
    ),
    "a mutex shared between processes": (0, 2, mutex(), Lock("mutex", False, 4712)),
    "a recursive mutex": (PRIVATE, 2, mutex(kind=1), Lock("mutex", True, 4712)),
    "a mutex whose owner is gone": (PRIVATE, 2, mutex(owner=99), Lock("mutex", True, None)),
    "a word of 2 that is no mutex": (
        PRIVATE,
        2,
        mutex(owner=-5),
        Lock("unknown", True, None),
    ),
    "a mutex that was just released": (
        PRIVATE,
        2,
        mutex(lock=1),
        Lock("unknown", True, None),
    ),
    "a lock with priority inheritance": (
        PI | PRIVATE,
        0,
        struct.pack("=I", 0x80000007),
        Lock("mutex", True, 4711),
    ),
    "a join": (BITSET | REALTIME, 8, struct.pack("=I", 8), Lock("thread", False, 4712)),
    "the number of a thread in private memory is no join": (
        PRIVATE,
        8,
        struct.pack("=I", 8) + bytes(20),
        Lock("unknown", True, None),
    ),
    "a semaphore counts its waiters behind the value": (
        BITSET | PRIVATE,
        0,
        semaphore(),
        Lock("semaphore", True, None),
    ),
    "a condition does not": (
        BITSET | PRIVATE,
        0,
        semaphore(waiters=0),
        Lock("condition", True, None),
    ),
    "memory that cannot be read": (PRIVATE, 2, b"", Lock("unknown", True, None)),
    "a wake is no wait": (1, 1, mutex(), None),
}


@pytest.mark.parametrize("name", CASES)
def test_describe__the_lock_is_reported(name: str) -> None:
    operation, expected, memory, lock = CASES[name]
    assert describe(operation, expected, memory, THREADS) == lock


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=64),
    st.dictionaries(st.integers(0, 2**31), st.integers(1, 2**31)),
)
@example(PRIVATE, 2, mutex(), THREADS)
@example(PI | PRIVATE, 0, struct.pack("=I", 0x80000007), THREADS)
def test_describe__any_memory_is_read_without_error(
    operation: int, expected: int, memory: bytes, threads: dict[int, int]
) -> None:
    found = describe(operation, expected, memory, threads)
    assert found is None or found.holder is None or found.holder in threads.values()
