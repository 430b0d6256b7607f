"""Converts times between Kubernetes' format (RFC 3339, UTC) and unix seconds."""

from __future__ import annotations

from datetime import UTC, datetime

_LEAST_S, _MOST_S = -3e10, 1e11
"""Range of the years 1019 to 5138, which have four digits in any zone, so that every time read can be written again."""


def from_text(text: str) -> float:
    """Unix seconds of an RFC 3339 time with a zone; raises `ValueError` for anything else."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        seconds = moment.timestamp()
        if not has_year(seconds):
            raise ValueError("no such year")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:40]!r} is not a time like 2026-01-02T03:04:05Z") from error
    return seconds


def has_year(time_s: float) -> bool:
    """False for a time (unix seconds) outside the range of `from_text`, and for NaN."""
    return _LEAST_S <= time_s <= _MOST_S


def to_text(time_s: float) -> str:
    """RFC 3339 in UTC with microseconds, the finest that the API server keeps."""
    moment = datetime.fromtimestamp(time_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def in_seconds(time_s: float) -> str:
    """As `to_text`, without a fraction, such as "2027-01-15T08:00:00Z"."""
    return f"{to_text(time_s)[:19]}Z"
