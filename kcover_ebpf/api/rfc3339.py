"""Times as Kubernetes writes them (RFC 3339, UTC) and as we count them (unix seconds)."""

from __future__ import annotations

from datetime import UTC, datetime


def from_text(text: str) -> float:
    """Unix seconds of an RFC 3339 time with a zone; raises `ValueError` for anything else.

    Also for the years 1 and 9999, some times of which are none in UTC and could not be written again.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        if not 1 < moment.year < 9999:
            raise ValueError("no such year")
        return moment.timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:40]!r} is not a time like 2026-01-02T03:04:05Z") from error


def to_text(time_s: float) -> str:
    """RFC 3339 in UTC with microseconds, the finest that the API server keeps."""
    moment = datetime.fromtimestamp(time_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
