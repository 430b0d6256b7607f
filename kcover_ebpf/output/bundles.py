"""Bundles: what was known about a job, as files in one directory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from kcover_ebpf.errors import ActionError


def bundle_name(time_s: float, what: str) -> str:
    """A directory name that sorts by time (unix seconds): 20260102T030405.678Z-train-1-HUNG."""
    clock = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time_s))
    return f"{clock}.{int(time_s % 1 * 1000):03d}Z-{what}"


def write_bundle(
    parent: Path, name: str, files: Mapping[str, str], copies: Iterable[Path] = ()
) -> Path:
    """Write `files` (name -> text) and copies of files to a new directory below `parent`, and return it.

    The directory appears under its name only when it is complete, and only its owner may read it: it
    holds the ends of logs, and command lines. Raises `ActionError`.
    """
    final = parent / name
    draft = parent / f".{name}.draft"
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.mkdir(mode=0o700)
        for file_name, text in files.items():
            path = draft / file_name
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        for copied in copies:
            path = draft / copied.name
            path.touch(mode=0o600)
            shutil.copyfile(copied, path)
        draft.rename(final)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise ActionError(f"cannot write the bundle {final}: {error.strerror}") from error
    return final
