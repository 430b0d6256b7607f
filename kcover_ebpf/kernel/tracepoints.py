"""Which typed tracepoints this kernel and its modules have, from their type information."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

_FOLDER = Path("/sys/kernel/btf")
_PREFIX = b"btf_trace_"
"""Each typed tracepoint has a type of this name (include/trace/bpf_probe.h)."""


def absent(names: Collection[str], folder: Path = _FOLDER) -> frozenset[str]:
    """Those of `names` that neither the kernel nor a loaded module has.

    Says so for certain; a name that is not among them may still be refused. Files that cannot be
    read are taken to have every name.
    """
    try:
        missing = frozenset(names) - _of_kernel(folder / "vmlinux")
        if not missing:
            return missing
        for module in folder.iterdir():
            missing -= _names_in(module.read_bytes())
    except OSError:
        return frozenset()
    return missing


@cache
def _of_kernel(path: Path) -> frozenset[str]:
    """Kept, because the kernel itself does not change; its modules do."""
    return _names_in(path.read_bytes())


def _names_in(types: bytes) -> frozenset[str]:
    # all names stand in one section, each ended by a zero byte: no need to walk 100,000 types
    _, *tails = types.split(_PREFIX)
    return frozenset(tail.partition(b"\0")[0].decode("ascii", "replace") for tail in tails)
