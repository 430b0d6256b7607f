"""Names that the compiler gave to functions it changed: nvidia_close may be nvidia_close.constprop.0.

Only clones that are called as the function was count: ".cold" and ".part" are pieces of a body. A
clone may have lost arguments (".isra", ".constprop"), so what a probe reads there may be nothing; it
never faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_KALLSYMS = Path("/proc/kallsyms")
_SUFFIX = re.compile(r"(?:\.(?:constprop|isra|lto_priv)(?:\.\d+)?|\.llvm\.\d+)+")


def variants(name: str, lines: Iterable[str]) -> list[str]:
    """The clones of a function among lines of /proc/kallsyms (or of nm), each once."""
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
    """The only clone of a function that the kernel or a module has; None for none or several."""
    try:
        with kallsyms.open(encoding="ascii", errors="replace") as lines:
            found = variants(name, lines)
    except OSError:
        return None
    return found[0] if len(found) == 1 else None
