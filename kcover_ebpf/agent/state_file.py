"""Files of the agent's state folder: each is written whole or not at all, and only root may read it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcover_ebpf.api import codec


def write_json(
    path: Path,
    value: object,
    encode: Callable[[object], dict[str, Any]] = codec.encode,
    *,
    durable: bool = False,
) -> None:
    """Replace the file with a dataclass as JSON, in the form of `encode`; on `OSError` the file is unchanged.

    One writer per file at a time. `durable`: the file is on disk when this returns, not only in the page cache, so
    that it survives a crash of the node.
    """
    write_text(path, json.dumps(encode(value)), durable=durable)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace the file with a text; otherwise as `write_json`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".draft")
    # the kubelet creates a hostPath's folder readable by all
    with open(draft, "w", encoding="utf-8", opener=_only_root) as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)


def _only_root(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor
