"""Names of addresses in other processes, by bcc's symbolizer, across mount namespaces.

libbcc_bpf is the part of bcc that needs neither LLVM nor kernel headers; it finds a library of a
container through /proc/PID/root. Its interface: src/cc/bcc_syms.h.
"""

from __future__ import annotations

import ctypes
from posixpath import basename

_LIBRARIES = ("libbcc_bpf.so.0", "libbcc.so.0")
_FUNCTIONS = (1 << 2) | (1 << 10)  # STT_FUNC, STT_GNU_IFUNC


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("demangle_name", ctypes.c_char_p),
        ("module", ctypes.c_char_p),
        ("offset", ctypes.c_uint64),
    )


class _Option(ctypes.Structure):
    _fields_ = (
        ("use_debug_file", ctypes.c_int),
        ("check_debug_file_crc", ctypes.c_int),
        ("lazy_symbolize", ctypes.c_int),
        ("use_symbol_type", ctypes.c_uint32),
    )


class NoSymbolizer(Exception):
    """The library of bcc is not installed."""


class Symbols:
    """The symbols of one process; files are read when needed."""

    def __init__(self, pid: int) -> None:
        """Raises `NoSymbolizer` without bcc's library."""
        self._library = _load()
        option = _Option(0, 0, 1, _FUNCTIONS)
        self._cache = self._library.bcc_symcache_new(pid, ctypes.byref(option))

    def name(self, address: int) -> str:
        """Such as "pthread_mutex_lock (libc.so.6)"; module and offset if there is no symbol."""
        symbol = _Symbol()
        status = self._library.bcc_symcache_resolve(self._cache, address, ctypes.byref(symbol))
        module = basename((symbol.module or b"").decode("utf-8", "replace"))
        if status == 0 and symbol.demangle_name:
            name = symbol.demangle_name.decode("utf-8", "replace")
            self._library.bcc_symbol_free_demangle_name(ctypes.byref(symbol))
            return f"{name} ({module})"
        return f"{module}+{symbol.offset:#x}" if module else f"{address:#x}"

    def close(self) -> None:
        """Free the memory of bcc's symbolizer."""
        self._library.bcc_free_symcache(self._cache, -1)


def _load() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.bcc_symcache_new.restype = ctypes.c_void_p
        library.bcc_symcache_new.argtypes = [ctypes.c_int, ctypes.POINTER(_Option)]
        library.bcc_symcache_resolve.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.POINTER(_Symbol),
        ]
        library.bcc_symbol_free_demangle_name.argtypes = [ctypes.POINTER(_Symbol)]
        library.bcc_free_symcache.argtypes = [ctypes.c_void_p, ctypes.c_int]
        return library
    raise NoSymbolizer("bcc (libbpfcc) is not installed")
