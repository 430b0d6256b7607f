"""Where programs can attach on this kernel: typed tracepoints by BTF, functions under compiler-changed names.

The compiler may rename nvidia_close to nvidia_close.constprop.0. Only clones that are called like the function
count: ".cold" and ".part" are fragments of a body. A clone may lack arguments (".isra", ".constprop"), so a probe
may read garbage there; it never faults.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path

_FOLDER = Path("/sys/kernel/btf")
_KERNEL = "vmlinux"
_NAMES = re.compile(rb"btf_trace_([^\0]*)")
"""Each typed tracepoint has a BTF type of this name (include/trace/bpf_probe.h)."""
_MOST_FILES = 1024
"""Most module files read; a node has some 200 modules."""
_KALLSYMS = Path("/proc/kallsyms")
_SUFFIX = re.compile(r"(?:\.(?:constprop|isra|lto_priv)(?:\.\d+)?|\.llvm\.\d+)+")


def absent(names: Collection[str], folder: Path = _FOLDER) -> frozenset[str]:
    """Those tracepoints of `names` that neither the kernel nor a loaded module has.

    The answer is certain for the returned names; attaching to the others may still fail. A file that cannot be read
    is assumed to contain every name.
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
    # a reloaded module has a file with a new number: sysfs never reuses one
    return _read(path, path.stat().st_ino)


@lru_cache(maxsize=_MOST_FILES)
def _read(path: Path, _inode: int) -> frozenset[str]:
    # all names are in one section, separated by zero bytes: no need to walk 100,000 types
    found = _NAMES.findall(path.read_bytes())
    return frozenset(name.decode("ascii", "replace") for name in found)


def variants(name: str, lines: Iterable[str]) -> list[str]:
    """The clones of a function in the lines of /proc/kallsyms (or of nm), each once."""
    found = dict.fromkeys(
        words[2]
        for line in lines
        if name in line
        and len(words := line.split()) >= 3
        and words[1] in "tT"
        and words[2].startswith(name)
        and _SUFFIX.fullmatch(words[2], len(name))
    )
    return list(found)


def variant(name: str, kallsyms: Path = _KALLSYMS) -> str | None:
    """The only clone of a function in the kernel or a module; None if there are none or several."""
    try:
        with kallsyms.open(encoding="ascii", errors="replace") as lines:
            found = variants(name, lines)
    except OSError:
        return None
    return found[0] if len(found) == 1 else None
