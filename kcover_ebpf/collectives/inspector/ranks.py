"""What the files say that NCCL Inspector writes for the ranks of a job on this host; the end of each file alone.

They are read while the job is slow, by a process with little memory: fewer files and less of each than on demand.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from kcover_ebpf.collectives.inspector import folder
from kcover_ebpf.collectives.inspector.findings import slow_in
from kcover_ebpf.collectives.inspector.records import CollectiveRun
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.facts.inspector import SlowCollective
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.collectives import INSPECTOR_FILES, INSPECTOR_TAIL_BYTES

_MOST_SLOW = 4
_MOST_MEMBERS = 64


class InspectorSource(Protocol):
    """Who reads. May block."""

    def slow_collectives(self, pids: Collection[Pid]) -> tuple[SlowCollective, ...]:
        """What is slow by the files that these ranks write; empty where nothing is, or nothing can be read."""
        ...


class InspectorHere:
    """Reads in this process."""

    def slow_collectives(self, pids: Collection[Pid]) -> tuple[SlowCollective, ...]:
        """As `InspectorSource` says."""
        return slow_at(pids)


def slow_at(pids: Collection[Pid]) -> tuple[SlowCollective, ...]:
    """As an `InspectorSource` does; the folder that several ranks share is read once."""
    known: set[tuple[int, int]] = set()
    found: list[CollectiveRun] = []
    file_count = 0
    for pid in pids:
        with contextlib.suppress(CannotObserve, OSError):
            descriptor = folder.opened_by(pid)
            try:
                status = os.fstat(descriptor)
                place = status.st_dev, status.st_ino
                if place in known:
                    continue
                known.add(place)
                left_count = max(0, INSPECTOR_FILES - file_count)
                read = folder.read(descriptor, left_count, INSPECTOR_TAIL_BYTES)
            finally:
                os.close(descriptor)
            file_count += read.file_count
            found += read.runs
    return tuple(map(_bounded, slow_in(found)[:_MOST_SLOW]))


def _bounded(slow: SlowCollective) -> SlowCollective:
    members, hosts = slow.members[:_MOST_MEMBERS], slow.hosts[:_MOST_MEMBERS]
    return replace(slow, members=members, hosts=hosts)
