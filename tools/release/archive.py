"""Writes archives that are byte-identical if they are made of the same files."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One file of an archive: `name` is its path inside."""

    name: str
    content: bytes
    is_program: bool = False


def entry(name: str, path: Path) -> Entry:
    """The file at `path`, as `name`."""
    return Entry(name, path.read_bytes())


def write(target: Path, entries: Iterable[Entry], epoch_s: int) -> None:
    """Write `target`, compressed unless it is a .tar; each file has the time `epoch_s` (seconds since 1970)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in entries:
            info = tarfile.TarInfo(file.name)
            info.size, info.mtime = len(file.content), epoch_s
            info.mode = 0o755 if file.is_program else 0o644
            archive.addfile(info, io.BytesIO(file.content))
    if target.suffix == ".tar":
        target.write_bytes(raw.getvalue())
        return
    target.write_bytes(gzip.compress(raw.getvalue(), compresslevel=6, mtime=epoch_s))
