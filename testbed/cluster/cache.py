"""The cache of programs and images: shared by all checkouts, filled once, checked when used."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.cluster import layout


def folder(*names: str) -> Path:
    """A folder of the cache; made when it is not there."""
    path = layout.cache_folder().joinpath(*names)
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def locked(what: str) -> Iterator[None]:
    """Only one process at a time makes a thing; a second one waits and finds it there."""
    with open(folder("locks") / what, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def key(*texts: str) -> str:
    """A short name for everything that something was made from."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(path: Path) -> None:
    """Write the file's digest next to it, which marks it as complete."""
    path.with_name(path.name + ".sha256").write_text(digest(path) + "\n")


def intact(path: Path) -> bool:
    """Whether the file is there as it was sealed; a broken one is removed, to be made again."""
    record = path.with_name(path.name + ".sha256")
    if not record.exists() or not path.exists():
        return False
    if record.read_text().strip() == digest(path):
        return True
    print(f"testbed: {path} was changed since it was made: making it again", flush=True)
    path.unlink()
    return False


def remove(path: Path) -> None:
    """Remove a file, a link or a folder; none is fine too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
