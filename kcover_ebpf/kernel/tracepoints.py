"""Which typed tracepoints this kernel and its modules have, from their type information."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

_FOLDER = Path("/sys/kernel/btf")
_KERNEL = "vmlinux"
_NAMES = re.compile(rb"btf_trace_([^\0]*)")
"""Each typed tracepoint has a type of this name (include/trace/bpf_probe.h)."""
_MOST_FILES = 1024
"""A node has some 200 modules."""


def absent(names: Collection[str], folder: Path = _FOLDER) -> frozenset[str]:
    """Those of `names` that neither the kernel nor a loaded module has.

    Says so for certain; a name that is not among them may still be refused. Files that cannot be
    read are taken to have every name.
    """
    try:
        missing = frozenset(names) - _names_in(folder / _KERNEL)
        if not missing:
            return missing
        for module in folder.iterdir():
            if module.name != _KERNEL:
                missing -= _names_in(module)
    except OSError:
        return frozenset()
    return missing


def _names_in(path: Path) -> frozenset[str]:
    # a module that is loaded again has a file with its own number: sysfs uses none twice
    return _read(path, path.stat().st_ino)


@lru_cache(maxsize=_MOST_FILES)
def _read(path: Path, _inode: int) -> frozenset[str]:
    # all names are in one section, each ended by a zero byte: no need to walk 100,000 types
    found = _NAMES.findall(path.read_bytes())
    return frozenset(name.decode("ascii", "replace") for name in found)
