"""The part of libbpf.so.1 that is used, through ctypes: objects, programs, links, iterators.

It makes no policy: which object is loaded, and what its refusal costs, is defined in `probes`. Pointers stay inside
this module. Every failure becomes an `OSError` with the errno, or a `LoadError` with the kernel's reason.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from kcover_ebpf.errors import LoadError

_LOG_LINE_COUNT = 400

_PrintCallback = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
SampleCallback = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bpf_object__open_file": (c_void_p, (c_char_p, c_void_p)),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_object__next_map": (c_void_p, (c_void_p, c_void_p)),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__section_name": (c_char_p, (c_void_p,)),
    "bpf_program__set_autoload": (c_int, (c_void_p, c_bool)),
    "bpf_program__attach": (c_void_p, (c_void_p,)),
    "bpf_program__attach_kprobe": (c_void_p, (c_void_p, c_bool, c_char_p)),
    "bpf_program__attach_uprobe": (c_void_p, (c_void_p, c_bool, c_int, c_char_p, c_size_t)),
    "bpf_program__attach_cgroup": (c_void_p, (c_void_p, c_int)),
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
    "ring_buffer__new": (c_void_p, (c_int, SampleCallback, c_void_p, c_void_p)),
    "ring_buffer__poll": (c_int, (c_void_p, c_int)),
    "ring_buffer__consume": (c_int, (c_void_p,)),
    "ring_buffer__free": (None, (c_void_p,)),
    "libbpf_find_vmlinux_btf_id": (c_int, (c_char_p, c_int)),
    "bpf_prog_load": (c_int, (c_int, c_char_p, c_char_p, c_void_p, c_size_t, c_void_p)),
    "bpf_map_create": (c_int, (c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p)),
}

_log: list[str] = []


@_PrintCallback  # type: ignore[untyped-decorator]
def _print(level: int, message_format: bytes, arguments: int) -> int:
    """Keep a warning of libbpf; it is reported only if the current step fails."""
    if level == 0:
        text = ctypes.create_string_buffer(64 * 1024)
        ctypes.CDLL(None).vsnprintf(text, c_size_t(len(text)), message_format, c_void_p(arguments))
        _log.extend(text.value.decode("utf-8", "replace").splitlines())
        del _log[:-_LOG_LINE_COUNT]
    return 0


@cache
def library() -> ctypes.CDLL:
    """libbpf.so.1 with its prototypes; raises `LoadError` if it is not installed."""
    try:
        loaded = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise LoadError("libbpf.so.1 is missing: install the package libbpf1") from error
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    loaded.libbpf_set_print(_print)
    return loaded


# include/malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP_ALL_BYTES, _KEEP_LITTLE_BYTES = 64 * 1024 * 1024, 1024 * 1024


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory in the process within this block, and return it to the kernel at the end.

    For each object, libbpf reads the kernel's types, 5 MB and an index. Two thirds of the time for a small object
    are page faults of that memory (measured: 15 ms with them, 6 ms without).
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, c_int(_KEEP_ALL_BYTES))
    libc.mallopt(_TRIM_THRESHOLD, c_int(_KEEP_ALL_BYTES))
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, c_int(_KEEP_LITTLE_BYTES))
        libc.mallopt(_TRIM_THRESHOLD, c_int(_KEEP_LITTLE_BYTES))
        libc.malloc_trim(c_size_t(0))


def last_error() -> OSError:
    """The errno of the last libbpf call as an `OSError`."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def check(result: int) -> int:
    """The result of a call that returns negative errnos on failure; raises `OSError` for those."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


_LOG_NOISE = (
    "processed ",
    "-- END",
    "libbpf: failed to load object",
    "verification time",
    "stack depth",
)


def clear_log() -> None:
    """Drop warnings of earlier steps, so that only those of the next one are reported."""
    _log.clear()


def verdict_of_log() -> str:
    """The line in which the verifier or libbpf gives its reason, in brackets: the last that is not a summary."""
    for line in reversed(_log):
        text = line.strip()
        is_summary = "failed to load: -" in text or "failed to prepare load attributes" in text
        if text and not text.startswith(_LOG_NOISE) and not is_summary:
            return f" ({text.removeprefix('libbpf: ')[:200]})"
    return ""
