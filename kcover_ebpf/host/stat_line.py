"""The line of /proc/PID/stat. Alone here: what only needs this is started often, and imports little."""

from __future__ import annotations


def split_stat(text: str) -> tuple[str, list[str]]:
    """(name, words from the state on) of a stat line of /proc; the name may hold anything, also ")"."""
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()
