"""Unforeseen errors, as one line that a bug report can start from."""

from __future__ import annotations

from pathlib import Path


def blame(error: BaseException) -> str:
    """Kind, message and place of an error, on one line."""
    import traceback  # rarely needed, and not cheap

    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}{place}"
