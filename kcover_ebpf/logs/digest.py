"""SHA-256 without OpenSSL: `hashlib` loads it, which is 4 MB of a reader that hashes nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = "_sha2", "_sha256", "hashlib"
"""Of Python 3.12, of 3.11, and where it was built without its own."""


def hex_digest(text: str) -> str:
    """As `hashlib.sha256` has it, of the text in UTF-8."""
    return str(_sha256(text.encode()).hexdigest())


def _found() -> Any:
    for name in _MODULES[:-1]:
        try:
            return import_module(name).sha256
        except ImportError:
            continue
    return import_module(_MODULES[-1]).sha256


_sha256 = _found()
