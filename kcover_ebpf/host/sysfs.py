"""Reads small files and links of sysfs, and files of /proc in the same format."""

from __future__ import annotations

import os
from pathlib import Path

from kcover_ebpf.host.bounded import read_text


def text(path: Path) -> str:
    """Content of a file without its newline; empty if it cannot be read."""
    return read_text(path).strip()


def number(path: Path) -> int | None:
    """Decimal number in a file; None if there is none."""
    found = text(path)
    return int(found) if found.isdecimal() else None


def linked_name(link: Path) -> str:
    """Name of the target of a link; empty if it is not a link.

    The link is not resolved: below /proc/PID/root that would lead out of that process's file system.
    """
    try:
        return Path(os.readlink(link)).name  # noqa: PTH115 - what it names need not exist here
    except OSError:
        return ""
