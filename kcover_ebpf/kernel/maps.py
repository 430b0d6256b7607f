"""Access to the maps and the ring buffer of a loaded object, as bytes."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Iterator
from ctypes import byref, c_uint32

from kcover_ebpf.kernel.libbpf import SampleCallback, check, last_error, library

_BATCH_COUNT = 512
_BPF_ANY, _BPF_NOEXIST = 0, 1


class BpfMap:
    """A map of a loaded object. Keys and values are bytes of exactly the map's sizes."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        self._lib = library()
        self.key_size: int = self._lib.bpf_map__key_size(pointer)
        self.value_size: int = self._lib.bpf_map__value_size(pointer)

    @property
    def fd(self) -> int:
        """File descriptor of the map; -1 before the object is loaded."""
        return int(self._lib.bpf_map__fd(self._pointer))

    def set_max_entries(self, count: int) -> None:
        """Change the capacity; only before the object is loaded."""
        check(self._lib.bpf_map__set_max_entries(self._pointer, count))

    def reuse(self, other_bpf_map: BpfMap) -> None:
        """Share the map `other_bpf_map`; only before the object is loaded."""
        check(self._lib.bpf_map__reuse_fd(self._pointer, other_bpf_map.fd))

    def memory(self) -> mmap.mmap:
        """The values of a mappable array, live and read-only; saves a system call per read."""
        size = -self.value_size % mmap.PAGESIZE + self.value_size
        return mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)

    def update(self, key: bytes, value: bytes) -> None:
        """Set an entry; raises `OSError` (E2BIG when the map is full)."""
        check(self._lib.bpf_map_update_elem(self.fd, key, value, _BPF_ANY))

    def add(self, key: bytes, value: bytes) -> None:
        """Add an entry if there is none with this key; raises `OSError` (E2BIG when the map is full)."""
        result = self._lib.bpf_map_update_elem(self.fd, key, value, _BPF_NOEXIST)
        if result != -errno.EEXIST:
            check(result)

    def delete(self, key: bytes) -> None:
        """Remove an entry if there is one with this key."""
        self._lib.bpf_map_delete_elem(self.fd, key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry, hundreds per system call. Entries added or removed meanwhile may be missed."""
        for keys, values in self._batches():
            yield from zip(
                _split(keys, self.key_size), _split(values, self.value_size), strict=True
            )

    def values(self) -> Iterator[bytes]:
        """Every value, hundreds per system call. Entries added or removed meanwhile may be missed."""
        for _, values in self._batches():
            yield from _split(values, self.value_size)

    def _batches(self) -> Iterator[tuple[bytes, bytes]]:
        keys = bytearray(self.key_size * _BATCH_COUNT)
        values = bytearray(self.value_size * _BATCH_COUNT)
        key_buffer = (ctypes.c_char * len(keys)).from_buffer(keys)
        value_buffer = (ctypes.c_char * len(values)).from_buffer(values)
        cursor, count = c_uint32(), c_uint32()
        started, result = None, 0
        while result >= 0:
            count.value = _BATCH_COUNT
            result = self._lib.bpf_map_lookup_batch(
                self.fd, started, byref(cursor), key_buffer, value_buffer, byref(count), None
            )
            if result != -errno.ENOENT:
                check(result)
            started = byref(cursor)
            yield (
                bytes(keys[: count.value * self.key_size]),
                bytes(values[: count.value * self.value_size]),
            )


def _split(packed: bytes, size: int) -> Iterator[bytes]:
    return (packed[start : start + size] for start in range(0, len(packed), size))


class RingBuffer:
    """The reader of a ring buffer map."""

    def __init__(self, bpf_map: BpfMap) -> None:
        self._lib = library()
        self._records: list[bytes] = []
        # ctypes does not keep callbacks alive; this attribute does.
        self._callback = SampleCallback(self._take)
        self._pointer: int | None = self._lib.ring_buffer__new(
            bpf_map.fd, self._callback, None, None
        )
        if not self._pointer:
            raise last_error()

    def _take(self, _context: int, data: int, size: int) -> int:
        self._records.append(ctypes.string_at(data, size))
        return 0

    def poll(self, timeout_ms: int) -> list[bytes]:
        """Available records, or those that arrive until the first that wakes the reader; empty on time-out or a signal.

        Records that do not wake the reader are returned with the next one that does, or at the time-out.
        """
        if self._lib.ring_buffer__poll(self._pointer, timeout_ms) == 0:
            self._lib.ring_buffer__consume(self._pointer)
        records, self._records = self._records, []
        return records

    def close(self) -> None:
        """Free the reader; the map stays with its object."""
        if self._pointer is not None:
            self._lib.ring_buffer__free(self._pointer)
            self._pointer = None
