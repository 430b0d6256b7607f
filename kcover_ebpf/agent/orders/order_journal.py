"""Orders that this agent received and carried out, written to disk before they are carried out.

A restarted agent must not carry out an order twice, must know what it left stopped, and must resume it in time. The
file is small (the last orders, the stops in force) and is replaced as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from kcover_ebpf.agent.state_file import LateWriter
from kcover_ebpf.api.codec import decode, wire
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, UsageError
from kcover_ebpf.tunables.agent import JOURNAL_WAIT_S

_KEPT = 64


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container stopped by an order."""

    pod_uid: str
    id: str


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process. Its start time distinguishes it from a later process with the same pid."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class StopRecord:
    """Containers that are stopped for an incident; `until_s`: unix seconds at which they are resumed automatically."""

    incident: str
    gang: str
    until_s: float
    containers: tuple[ContainerRef, ...] = ()
    already_stopped: tuple[ProcessRef, ...] = field(default=(), metadata=wire("held"))
    """Processes that something else had stopped before; they are not resumed."""


@dataclass(frozen=True, slots=True)
class DoneRecord:
    """An order that was begun; without an ack it was never finished."""

    id: str
    verb: Verb
    gang: str
    ack: Ack | None = None


@dataclass(frozen=True, slots=True)
class _Book:
    done: tuple[DoneRecord, ...] = ()
    stops: tuple[StopRecord, ...] = field(default=())


class OrderJournal:
    """Journal of orders, in memory and in `path`. Used by the order thread, and by the main thread at shutdown.

    An order that must not be repeated is on disk before it is carried out. A finished one is remembered at once and
    written if possible: resuming processes depends on no disk, and waits `JOURNAL_WAIT_S` for one at most.
    """

    def __init__(self, path: Path) -> None:
        """Read the file; raises `UsageError` if that fails; a malformed file is renamed."""
        self._file = LateWriter(path, JOURNAL_WAIT_S)
        self._book = _read(path)

    @property
    def done(self) -> tuple[DoneRecord, ...]:
        """The last orders that were begun, newest last."""
        return self._book.done

    def knows(self, order_id: str) -> bool:
        """True once this order was begun, with any result."""
        return any(record.id == order_id for record in self._book.done)

    def begin(self, order: Order, gang: str, stop: StopRecord | None = None) -> None:
        """Record that this order is being carried out; raises `ActionError` if it cannot be written."""
        book = self._begun(order, gang, stop)
        self._file.write(book)
        self._book = book

    def note(self, order: Order, gang: str) -> None:
        """As `begin`, for an order that is harmless if repeated: remembered even if `ActionError` is raised."""
        self._book = self._begun(order, gang, None)
        self._file.write(self._book)

    def _begun(self, order: Order, gang: str, stop: StopRecord | None) -> _Book:
        done = (*self._book.done, DoneRecord(order.id, order.verb, gang))[-_KEPT:]
        stops = self._book.stops
        if stop is not None:
            stops = (
                *(stop_record for stop_record in stops if stop_record.incident != stop.incident),
                stop,
            )
        return _Book(done, stops)

    def finish(self, ack: Ack) -> None:
        """Record the result of an order; remembered even if `ActionError` is raised."""
        done = tuple(
            replace(record, ack=ack) if record.id == ack.order else record
            for record in self._book.done
        )
        self._book = replace(self._book, done=done)
        self._file.write(self._book)

    def drop_stops(self, incidents: Collection[str]) -> None:
        """Record that these containers are no longer stopped; remembered even if `ActionError` is raised."""
        stops = tuple(stop for stop in self._book.stops if stop.incident not in incidents)
        if len(stops) != len(self._book.stops):
            self._book = replace(self._book, stops=stops)
            self._file.write(self._book)

    @property
    def stops(self) -> Mapping[str, StopRecord]:
        """Incident uid -> stop that is in force."""
        return {stop.incident: stop for stop in self._book.stops}

    @property
    def unfinished(self) -> tuple[DoneRecord, ...]:
        """Orders that an earlier agent began and did not finish."""
        return tuple(record for record in self._book.done if record.ack is None)

    def acks(self, gang: str) -> tuple[Ack, ...]:
        """Acks of orders for a gang's report, newest last."""
        found = [
            record.ack
            for record in self._book.done
            if record.gang == gang and record.ack is not None
        ]
        return tuple(found)


def _read(path: Path) -> _Book:
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
        return decode(_Book, raw)
    except FileNotFoundError:
        return _Book()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; choose another --state-dir"
        ) from error
    except (ValueError, RecursionError, ObjectError):
        path.replace(path.with_suffix(".bad"))
        return _Book()


def interrupted(record: DoneRecord) -> Ack:
    """The ack of an order during which the agent died."""
    text = "the agent was restarted while executing this order"
    return Ack(record.id, record.verb, AckResult.PARTIAL, None, text)
