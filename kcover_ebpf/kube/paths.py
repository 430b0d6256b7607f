"""Parts of request paths that were written by users."""

from __future__ import annotations

from urllib.parse import quote


def segment(text: str) -> str:
    """The text as one segment of a path, whatever is in it: nothing leads out of its place."""
    if set(text) <= {"."}:
        return text.replace(".", "%2E")
    return quote(text, safe="")
