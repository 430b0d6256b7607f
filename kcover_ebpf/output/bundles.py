"""Bundles: what was known about a job, as files in one directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kcover_ebpf.errors import ActionError


def write_bundle(parent: Path, name: str, files: Mapping[str, str]) -> Path:
    """Write `files` (name -> text) to a new directory below `parent`, and return it.

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
        draft.rename(final)
    except OSError as error:
        raise ActionError(f"cannot write the bundle {final}: {error.strerror}") from error
    return final
