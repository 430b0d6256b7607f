"""`program`, which the wire and the judge share."""

from __future__ import annotations

from posixpath import basename

from kcover_ebpf.facts.host import ProcessSeen


def program(process: ProcessSeen) -> tuple[str, ...]:
    """What a process runs: interpreter and script, or module."""
    words = process.argv[:3] if process.argv[1:2] == ("-m",) else process.argv[:2]
    return tuple(basename(word) for word in words)
