"""Reads the files of an archive from a directory or a tar file that a person names, within bounds."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from kcover_ebpf.errors import UsageError
from kcover_ebpf.tunables.agent import ARCHIVE_FILES, ARCHIVE_MOST_BYTES

_DEEPEST = 4
_GZIP = b"\x1f\x8b"


def read_files(path: Path) -> dict[str, bytes]:
    """Path below the archive's folder -> content; raises `UsageError`.

    Links and pipes are not followed: an archive may come from another machine.
    """
    try:
        if path.is_dir():
            return _within_bounds(path, _of_folder(path, "", _DEEPEST))
        with path.open("rb") as file:
            return _within_bounds(path, _of_tar(file, path))
    except tarfile.TarError as error:
        raise UsageError(
            f"{path} is neither an archive's folder nor a tar file: {error}"
        ) from error
    except (OSError, EOFError) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error


def from_tar(content: bytes, name: str) -> dict[str, bytes]:
    """As `read_files`, from the bytes of a tar file; `name`: its name, for messages."""
    try:
        return _within_bounds(Path(name), _of_tar(io.BytesIO(content), Path(name)))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UsageError(f"{name} is not a tar file: {error}") from error


def is_tar(path: Path) -> bool:
    """Whether the file begins as a tar file does, plain or packed with gzip; raises `UsageError`."""
    try:
        with path.open("rb") as file:
            tarfile.TarInfo.frombuf(
                _Unpacked(file, path).read(tarfile.BLOCKSIZE), "utf-8", "replace"
            )
    except tarfile.TarError:
        return False
    except (OSError, EOFError) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    return True


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """The files as a tar; equal files give equal bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def _within_bounds(path: Path, found: Iterator[tuple[str, bytes]]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    left_bytes = ARCHIVE_MOST_BYTES
    for name, content in found:
        files[name] = content
        left_bytes -= len(content)
        if left_bytes < 0 or len(files) > ARCHIVE_FILES:
            raise _too_large(path)
    return files


def _too_large(path: Path) -> UsageError:
    most = f"{ARCHIVE_MOST_BYTES >> 20} MiB or {ARCHIVE_FILES} files"
    return UsageError(f"{path} is larger than an archive may be ({most})")


def _of_folder(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, bytes]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda found: found.name):
            if entry.is_dir(follow_symlinks=False) and depth:
                yield from _of_folder(Path(entry), f"{prefix}{entry.name}/", depth - 1)
            elif entry.is_file(follow_symlinks=False):
                yield f"{prefix}{entry.name}", _read(Path(entry))


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return file.read(ARCHIVE_MOST_BYTES + 1)


def _of_tar(packed: BinaryIO, path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=_Unpacked(packed, path), mode="r|") as archive:
        for count, member in enumerate(archive):
            if count > ARCHIVE_FILES:
                raise _too_large(path)
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name.removeprefix("./"), file.read(ARCHIVE_MOST_BYTES + 1)


class _Unpacked(io.RawIOBase):
    """What a file, plain or packed with gzip, unpacks to: at most as much as an archive may have.

    The headers of a tar file are read as well, and may be as large as its files.
    """

    def __init__(self, packed: BinaryIO, path: Path) -> None:
        begin = packed.read(len(_GZIP))
        packed.seek(0)
        self._file = gzip.GzipFile(fileobj=packed) if begin == _GZIP else packed
        self._path, self._left_bytes = path, ARCHIVE_MOST_BYTES

    def read(self, size: int = -1) -> bytes:
        """Raises `OSError` or `EOFError` for a damaged file, and `UsageError` for one that is too large."""
        try:
            data = self._file.read(size)
        except zlib.error as error:
            raise OSError(str(error)) from error
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise _too_large(self._path)
        return data
