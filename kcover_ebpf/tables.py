"""Reads the files that an operator writes, TOML or JSON; a bad file gives an error of one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kcover_ebpf.errors import PolicyError

_MOST_BYTES = 1 << 20
"""Larger than any file that people write; a device file or a log given by mistake has no end."""


def read_table(path: Path, what: str) -> dict[str, Any]:
    """The table in a file: JSON if it begins with a brace, TOML otherwise.

    `what`: description of its content for messages ("policy", "job rules"). Raises `PolicyError`, which begins with
    it and the path.
    """
    # imported late: few runs read a file
    import json
    import tomllib

    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"cannot read {what} {path}: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise PolicyError(f"{what} {path}: the file is larger than {_MOST_BYTES >> 20} MiB")
    is_json = raw.lstrip()[:1] == b"{"
    try:
        text = raw.decode("utf-8")
        table: dict[str, Any] = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # both also pass on errors of very long numbers and deep nesting
        form = "JSON" if is_json else "TOML"
        raise PolicyError(f"{what} {path}: the file is not valid {form}: {error}") from error
    return table
