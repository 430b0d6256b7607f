"""Archives that have the same bytes whenever they are made of the same files."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def write(target: Path, files: Iterable[tuple[str, Path]], epoch_s: int) -> None:
    """Write `files` (name inside, file) to the .tar.gz `target`; each has the time `epoch_s` (seconds since 1970)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = path.stat().st_size, epoch_s, 0o644
            with open(path, "rb") as content:
                archive.addfile(entry, content)
    target.write_bytes(gzip.compress(raw.getvalue(), mtime=epoch_s))
