"""Small files and links of sysfs; files of /proc read the same."""

from __future__ import annotations

import os
from pathlib import Path

from kcover_ebpf.host.bounded import read_text


def text(path: Path) -> str:
    """A file of sysfs without its newline; empty if it cannot be read."""
    return read_text(path).strip()


def number(path: Path) -> int | None:
    """A decimal number of sysfs; None if there is none."""
    found = text(path)
    return int(found) if found.isdecimal() else None


def linked_name(link: Path) -> str:
    """Name of what a link of sysfs leads to; empty if it is no link.

    Not resolved: below /proc/PID/root that would leave the file system of that process.
    """
    try:
        return Path(os.readlink(link)).name  # noqa: PTH115 - what it names need not exist here
    except OSError:
        return ""
