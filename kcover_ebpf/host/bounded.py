"""Reads of files whose length a process of a tenant decides: maps, mountinfo, fdinfo and others of /proc have no end.

A mount with a path of 4 KiB is a line of mountinfo, and a process may have 100,000 of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.host import over_bounds

MOST_BYTES = 1 << 20
"""Of one file: what a process with 5,000 mappings, mounts or watched descriptors needs."""
_CHUNK_BYTES = 64 << 10


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The file, or the whole lines at its beginning where it is larger; raises `OSError`."""
    with open(path, "rb", buffering=0) as file:
        data = bytearray()
        while len(data) <= most_bytes and (
            chunk := file.read(min(_CHUNK_BYTES, most_bytes + 1 - len(data)))
        ):
            data += chunk
    if len(data) <= most_bytes:
        return bytes(data)
    over_bounds.count("file", _pid_of(path))
    return bytes(data[: data.rfind(b"\n", 0, most_bytes) + 1])


def read_text(path: str | Path, most_bytes: int = MOST_BYTES) -> str:
    """The same as text; empty where it cannot be read.

    Lines end with a newline alone: names of programs and files hold other ends of lines (`str.splitlines`).
    """
    try:
        return read_bytes(path, most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def lines(path: str | Path, most_bytes: int = MOST_BYTES) -> Iterator[str]:
    """The lines of a file of text, one kept at a time, without their ends; raises `OSError`."""
    read, rest = 0, b""
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")
            read += len(chunk)
            if read > most_bytes:
                over_bounds.count("file", _pid_of(path))
                return
    if rest:
        yield rest.decode("utf-8", "replace")


def _pid_of(path: str | Path) -> int | None:
    """Of a path below /proc/PID; None for any other."""
    parts = Path(path).parts
    return int(parts[2]) if parts[:2] == ("/", "proc") and parts[2].isdecimal() else None


def links(folder: str | Path, most: int) -> tuple[Iterator[str], bool]:
    """Where the first `most` links of a folder lead, and whether there are more; raises `OSError`."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, most + 1)]
    return _targets(os.fspath(folder), names[:most]), len(names) > most


def _targets(folder: str, names: list[str]) -> Iterator[str]:
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115 - a path object each costs more
        except OSError:
            continue  # closed meanwhile
