"""Bundles: what was known about a job, as files in one directory; and how many of them a folder keeps."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ActionError
from kcover_ebpf.tunables.agent import BUNDLES_AGE_S, BUNDLES_AHEAD_S, BUNDLES_BYTES, BUNDLES_KEPT

_NAMED = "[0-9]*Z-*"
"""Pattern of names made by `bundle_name`; other files of the folder are ignored."""


def bundle_name(time_s: float, what: str) -> str:
    """A directory name that sorts by time (unix seconds): 20260102T030405.678Z-train-1-HUNG."""
    clock = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time_s))
    return f"{clock}.{int(time_s % 1 * 1000):03d}Z-{what}"


def bundles_of(parent: Path, what: str) -> list[Path]:
    """Bundles in a folder that `bundle_name` gave this name, oldest first."""
    named = (path for path in parent.glob(_NAMED) if path.name.partition("-")[2] == what)
    return sorted(path for path in named if path.is_dir() and not path.is_symlink())


def write_bundle(
    parent: Path, name: str, files: Mapping[str, bytes], copies: Iterable[Path] = ()
) -> Path:
    """Write `files` (path below the new directory -> content) and copies of files, and return the new directory.

    The directory appears below `parent` only when it is complete. Only its owner may read it, because it contains
    the ends of logs. Raises `ActionError`.
    """
    final = parent / name
    draft = parent / f".{name}.draft"
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.mkdir(mode=0o700)
        write_private(draft, files)
        for copied in copies:
            path = draft / copied.name
            path.touch(mode=0o600)
            shutil.copyfile(copied, path)
        draft.rename(final)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise ActionError(f"cannot write the bundle {final}: {error.strerror}") from error
    return final


def write_private(top: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` (path below `top` -> content), readable by their owner only; raises `OSError`."""
    for name, content in files.items():
        path = top / name
        _make_folders(top, path.parent)
        path.touch(mode=0o600)
        path.write_bytes(content)


def _make_folders(top: Path, folder: Path) -> None:
    # mkdir(parents=True) applies `mode` only to the last folder
    if folder != top and not folder.is_dir():
        _make_folders(top, folder.parent)
        folder.mkdir(mode=0o700)


@dataclass(frozen=True, slots=True)
class BundleBounds:
    """Bounds of a folder; the oldest bundles beyond any of them are removed."""

    count: int = BUNDLES_KEPT
    size_bytes: int = BUNDLES_BYTES
    age_s: float = BUNDLES_AGE_S


def prune(parent: Path, now_s: float, bounds: BundleBounds | None = None) -> None:
    """Remove the oldest bundles until the rest is within the bounds; `now_s`: unix seconds.

    Those with a time that has not come yet are the oldest: a clock that was set back must not cost the newest ones.
    A bundle that cannot be removed stays, and is tried again the next time.
    """
    bounds = bounds or BundleBounds()
    left_bytes = bounds.size_bytes
    oldest_name = bundle_name(max(0.0, now_s - bounds.age_s), "")
    newest_name = bundle_name(now_s + BUNDLES_AHEAD_S, "")
    newest_first = bundle_paths(parent)[::-1]
    newest_first.sort(key=lambda path: path.name > newest_name)
    for place, path in enumerate(newest_first):
        left_bytes -= bundle_bytes(path)
        if place >= bounds.count or left_bytes < 0 or path.name < oldest_name:
            shutil.rmtree(path, ignore_errors=True)


def bundle_paths(parent: Path) -> list[Path]:
    """The complete bundles of a folder, oldest first; empty if the folder does not exist."""
    # names begin with the time
    found = parent.glob(_NAMED)
    return sorted(path for path in found if path.is_dir() and not path.is_symlink())


def bundle_bytes(bundle: Path) -> int:
    """Sum of the sizes of its files, in bytes."""
    return sum(_sizes(bundle))


def _sizes(folder: Path) -> Iterator[int]:
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - thousands of names
            except OSError:
                continue
