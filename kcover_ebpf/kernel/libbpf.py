"""The part of libbpf.so.1 that is used, through ctypes: objects, maps, links, iterators, the ring.

No policy lives here: which object is loaded, and what its refusal costs, is said in `probes`.
Pointers stay inside this module. Every failure becomes an `OSError` with the errno, or a
`LoadError` with the kernel's reason.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from kcover_ebpf.errors import LoadError

_READ_BYTES = 64 * 1024
_LOG_LINE_COUNT = 400
_BATCH_COUNT = 512
_BPF_ANY, _BPF_NOEXIST = 0, 1

_PrintCallback = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
_SampleCallback = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class _IterTaskInfo(ctypes.Structure):
    """`union bpf_iter_link_info`, member `task` (include/uapi/linux/bpf.h)."""

    _fields_ = (("tid", c_uint32), ("pid", c_uint32), ("pid_fd", c_uint32))


class _IterAttachOptions(ctypes.Structure):
    _fields_ = (("sz", c_size_t), ("link_info", c_void_p), ("link_info_len", c_uint32))


_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bpf_object__open_file": (c_void_p, (c_char_p, c_void_p)),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_object__next_map": (c_void_p, (c_void_p, c_void_p)),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__set_autoload": (c_int, (c_void_p, c_bool)),
    "bpf_program__attach": (c_void_p, (c_void_p,)),
    "bpf_program__attach_iter": (c_void_p, (c_void_p, c_void_p)),
    "bpf_map__name": (c_char_p, (c_void_p,)),
    "bpf_map__fd": (c_int, (c_void_p,)),
    "bpf_map__key_size": (c_uint32, (c_void_p,)),
    "bpf_map__value_size": (c_uint32, (c_void_p,)),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32)),
    "bpf_map__reuse_fd": (c_int, (c_void_p, c_int)),
    "bpf_map_lookup_elem": (c_int, (c_int, c_char_p, c_void_p)),
    "bpf_map_update_elem": (c_int, (c_int, c_char_p, c_char_p, c_uint64)),
    "bpf_map_delete_elem": (c_int, (c_int, c_char_p)),
    "bpf_map_lookup_batch": (
        c_int,
        (c_int, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_uint32), c_void_p),
    ),
    "bpf_link__destroy": (c_int, (c_void_p,)),
    "bpf_link__fd": (c_int, (c_void_p,)),
    "bpf_iter_create": (c_int, (c_int,)),
    "ring_buffer__new": (c_void_p, (c_int, _SampleCallback, c_void_p, c_void_p)),
    "ring_buffer__poll": (c_int, (c_void_p, c_int)),
    "ring_buffer__free": (None, (c_void_p,)),
    "libbpf_find_vmlinux_btf_id": (c_int, (c_char_p, c_int)),
    "bpf_prog_load": (c_int, (c_int, c_char_p, c_char_p, c_void_p, c_size_t, c_void_p)),
    "bpf_map_create": (c_int, (c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p)),
}

_log: list[str] = []


@_PrintCallback  # type: ignore[untyped-decorator]
def _print(level: int, message_format: bytes, arguments: int) -> int:
    """Keeps what libbpf warns about; it is told only if the step at hand fails."""
    if level == 0:
        text = ctypes.create_string_buffer(64 * 1024)
        ctypes.CDLL(None).vsnprintf(text, c_size_t(len(text)), message_format, c_void_p(arguments))
        _log.extend(text.value.decode("utf-8", "replace").splitlines())
        del _log[:-_LOG_LINE_COUNT]
    return 0


@cache
def library() -> ctypes.CDLL:
    """libbpf.so.1 with its prototypes; raises `LoadError` where it is not installed."""
    try:
        loaded = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise LoadError("libbpf.so.1 is missing: install the package libbpf1") from error
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    loaded.libbpf_set_print(_print)
    return loaded


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class BpfMap:
    """A map of a loaded object. Keys and values are bytes of exactly its sizes."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        self._lib = library()
        self.key_size: int = self._lib.bpf_map__key_size(pointer)
        self.value_size: int = self._lib.bpf_map__value_size(pointer)

    @property
    def fd(self) -> int:
        """File descriptor of the map, -1 before the object is loaded."""
        return int(self._lib.bpf_map__fd(self._pointer))

    def set_max_entries(self, count: int) -> None:
        """Change the capacity; only before the object is loaded."""
        _check(self._lib.bpf_map__set_max_entries(self._pointer, count))

    def reuse(self, other: BpfMap) -> None:
        """Be the same map as `other`; only before the object is loaded."""
        _check(self._lib.bpf_map__reuse_fd(self._pointer, other.fd))

    def memory(self) -> mmap.mmap:
        """The values of a mappable array, live and read-only; a system call less for each look."""
        size = -self.value_size % mmap.PAGESIZE + self.value_size
        return mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)

    def lookup(self, key: bytes) -> bytes | None:
        """The value of an entry, or None."""
        value = ctypes.create_string_buffer(self.value_size)
        if self._lib.bpf_map_lookup_elem(self.fd, key, value) < 0:
            return None
        return value.raw

    def update(self, key: bytes, value: bytes) -> None:
        """Set an entry; raises `OSError` (E2BIG when the map is full)."""
        _check(self._lib.bpf_map_update_elem(self.fd, key, value, _BPF_ANY))

    def add(self, key: bytes, value: bytes) -> None:
        """Make an entry unless there is one; raises `OSError` (E2BIG when the map is full)."""
        result = self._lib.bpf_map_update_elem(self.fd, key, value, _BPF_NOEXIST)
        if result != -errno.EEXIST:
            _check(result)

    def delete(self, key: bytes) -> None:
        """Remove an entry, if it is there."""
        self._lib.bpf_map_delete_elem(self.fd, key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry, hundreds a system call; those that come or go meanwhile may be missed."""
        for keys, values in self._batches():
            yield from zip(
                _split(keys, self.key_size), _split(values, self.value_size), strict=True
            )

    def values(self) -> Iterator[bytes]:
        """Every value, likewise."""
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
                _check(result)
            started = byref(cursor)
            yield (
                bytes(keys[: count.value * self.key_size]),
                bytes(values[: count.value * self.value_size]),
            )


def _split(packed: bytes, size: int) -> Iterator[bytes]:
    return (packed[start : start + size] for start in range(0, len(packed), size))


class Link:
    """An attached program; destroying the link detaches it."""

    def __init__(self, pointer: int) -> None:
        self._pointer: int | None = pointer

    def read_iterator(self) -> bytes:
        """One whole walk of an iterator program: everything it wrote."""
        fd = _check(library().bpf_iter_create(library().bpf_link__fd(self._pointer)))
        chunks: list[bytes] = []
        try:
            while True:
                try:
                    chunk = os.read(fd, _READ_BYTES)
                except BlockingIOError:
                    # The kernel pauses after a million objects without output.
                    continue
                if not chunk:
                    return b"".join(chunks)
                chunks.append(chunk)
        finally:
            os.close(fd)

    def destroy(self) -> None:
        """Detach; further calls do nothing."""
        if self._pointer is not None:
            library().bpf_link__destroy(self._pointer)
            self._pointer = None


class BpfObject:
    """One object file: opened, adjusted (maps, which programs), loaded, attached, closed."""

    def __init__(self, path: Path) -> None:
        """Open without loading; raises `LoadError`."""
        self._lib = library()
        self.name = path.name
        _log.clear()
        self._pointer: int | None = self._lib.bpf_object__open_file(os.fsencode(path), None)
        if not self._pointer:
            raise LoadError(f"cannot open {path}: {_last_error().strerror}; run make build")
        self._programs = dict(self._walk("program"))
        self.maps = {name: BpfMap(pointer) for name, pointer in self._walk("map")}

    def _walk(self, kind: str) -> Iterator[tuple[str, int]]:
        following = getattr(self._lib, f"bpf_object__next_{kind}")
        name_of = getattr(self._lib, f"bpf_{kind}__name")
        pointer = following(self._pointer, None)
        while pointer:
            yield name_of(pointer).decode(), pointer
            pointer = following(self._pointer, pointer)

    @property
    def program_names(self) -> tuple[str, ...]:
        """The programs in the file."""
        return tuple(self._programs)

    def select(self, names: frozenset[str]) -> None:
        """Load only these programs."""
        for name, pointer in self._programs.items():
            self._lib.bpf_program__set_autoload(pointer, name in names)

    def load(self) -> None:
        """Have the kernel check and take the object; raises `LoadError` with its reason."""
        _log.clear()
        result = self._lib.bpf_object__load(self._pointer)
        if result < 0:
            raise LoadError(f"{self.name}: {os.strerror(-result)}{_verdict_of_log()}")

    def attach(self, name: str) -> Link:
        """Attach a program as its section says; raises `LoadError`."""
        _log.clear()
        pointer = self._lib.bpf_program__attach(self._programs[name])
        if not pointer:
            raise LoadError(f"{self.name}: {name}: {_last_error().strerror}")
        return Link(pointer)

    def attach_task_iterator(self, name: str, *, tid: int = 0, pid: int = 0) -> Link:
        """Attach a task iterator to one thread or one process only; raises `OSError`.

        Kernels before 6.1 do not know `pid` (E2BIG) and overlook `tid`.
        """
        info = _IterTaskInfo(tid, pid, 0)
        options = _IterAttachOptions(
            ctypes.sizeof(_IterAttachOptions), ctypes.addressof(info), ctypes.sizeof(info)
        )
        pointer = self._lib.bpf_program__attach_iter(self._programs[name], byref(options))
        if not pointer:
            raise _last_error()
        return Link(pointer)

    def close(self) -> None:
        """Give back programs and maps; attached programs live as long as their links."""
        if self._pointer is not None:
            self._lib.bpf_object__close(self._pointer)
            self._pointer = None


_LOG_NOISE = (
    "processed ",
    "-- END",
    "libbpf: failed to load object",
    "verification time",
    "stack depth",
)


def _verdict_of_log() -> str:
    """The line in which the verifier, or libbpf, says why: the last that is no summary."""
    for line in reversed(_log):
        text = line.strip()
        is_summary = "failed to load: -" in text or "failed to prepare load attributes" in text
        if text and not text.startswith(_LOG_NOISE) and not is_summary:
            return f" ({text.removeprefix('libbpf: ')[:200]})"
    return ""


class RingBuffer:
    """The reader of a ring buffer map."""

    def __init__(self, events: BpfMap) -> None:
        self._lib = library()
        self._records: list[bytes] = []
        # ctypes does not keep callbacks alive; the attribute does.
        self._callback = _SampleCallback(self._take)
        self._pointer: int | None = self._lib.ring_buffer__new(
            events.fd, self._callback, None, None
        )
        if not self._pointer:
            raise _last_error()

    def _take(self, _context: int, data: int, size: int) -> int:
        self._records.append(ctypes.string_at(data, size))
        return 0

    def poll(self, timeout_ms: int) -> list[bytes]:
        """Records that are there, or the first to come in time; empty if none, or on a signal."""
        self._lib.ring_buffer__poll(self._pointer, timeout_ms)
        records, self._records = self._records, []
        return records

    def close(self) -> None:
        """Stop reading."""
        if self._pointer is not None:
            self._lib.ring_buffer__free(self._pointer)
            self._pointer = None
