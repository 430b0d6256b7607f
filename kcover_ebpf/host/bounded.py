"""Reads files whose length a tenant's process decides: maps, mountinfo, fdinfo and other unbounded files of /proc.

For example, a mount can have a path of 4 KiB in its line of mountinfo, and a process can have 100,000 mounts.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.host import over_bounds

MOST_BYTES = 1 << 20
"""Most bytes of one file: enough for a process with 5,000 mappings, mounts or watched descriptors."""
MOST_MAPS_BYTES = 8 << 20
"""Most bytes of a maps file: some 80,000 mappings. It is sorted by address, and the libraries are at its end."""
_CHUNK_BYTES = 64 << 10


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The whole file, or the complete lines at its beginning if it is larger; raises `OSError`."""
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
    """The whole file as text, or the complete lines at its beginning; empty if it cannot be read.

    Only a newline ends a line: names of programs and files may contain the other characters that `str.splitlines`
    splits at.
    """
    try:
        return read_bytes(path, most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def lines(path: str | Path, most_bytes: int = MOST_BYTES) -> Iterator[str]:
    """The lines of a text file without their newlines, read one at a time; raises `OSError`."""
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


def maps(pid: int, proc: Path = Path("/proc")) -> Iterator[str]:
    """The lines of the mappings of a process; raises `OSError`."""
    return lines(proc / str(pid) / "maps", MOST_MAPS_BYTES)


def _pid_of(path: str | Path) -> int | None:
    """Process id in a path below /proc/PID; None for other paths."""
    parts = Path(path).parts
    return int(parts[2]) if parts[:2] == ("/", "proc") and parts[2].isdecimal() else None


def links(folder: str | Path, most: int) -> tuple[Iterator[str], bool]:
    """Targets of the first `most` links in a folder, and whether there are more; raises `OSError`."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, most + 1)]
    return _targets(os.fspath(folder), names[:most]), len(names) > most


def _targets(folder: str, names: list[str]) -> Iterator[str]:
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115 - a path object each costs more
        except OSError:
            continue  # closed meanwhile
