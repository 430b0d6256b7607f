"""Readings of real children."""

from __future__ import annotations

import platform

from kcover_ebpf.facts.host import ReadingRequest, ThreadReading
from kcover_ebpf.host.thread_reader import ThreadReader, ThreadReadings

from .children import child_in


def reading_of(request: ReadingRequest) -> ThreadReading:
    (found,) = ThreadReader(ThreadReadings(platform.machine())).read([request], timeout_s=5)
    assert isinstance(found, ThreadReading)
    assert (found.pid, found.tid) == (request.pid, request.tid)
    return found


def reading_in(body: str, *words: str) -> tuple[ThreadReading, int]:
    """The reading of a child in `body`, and when its wait began."""
    with child_in(body, words) as request:
        return reading_of(request), request.since_ns
