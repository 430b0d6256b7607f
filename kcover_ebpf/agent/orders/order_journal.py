"""What this agent was ordered and has done, on disk before it is done.

A restarted agent must not carry out an order twice, must know what it left stopped, and must let go of
it in time. The file is small (the last orders, the stops in force) and is replaced as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from kcover_ebpf.agent.orders.late_writer import LateWriter
from kcover_ebpf.api.codec import decode, wire
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, UsageError
from kcover_ebpf.tunables.agent import JOURNAL_WAIT_S

_KEPT = 64


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container that was stopped."""

    pod_uid: str
    id: str


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process; with its start no other one of the same number is meant."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class StopRecord:
    """Containers that are stopped for an incident; `until_s`: when they continue by themselves (unix seconds)."""

    incident: str
    gang: str
    until_s: float
    containers: tuple[ContainerRef, ...] = ()
    already_stopped: tuple[ProcessRef, ...] = field(default=(), metadata=wire("held"))
    """Processes that another process had stopped before: they stay so."""


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
    """The book, in memory and in `path`. Used by the order thread, and by the main thread when it ends.

    What must not be done twice is on disk before it is done. What is over is remembered at once, and written
    if that is possible: letting go of processes depends on no disk, and waits `JOURNAL_WAIT_S` for one at most.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there; raises `UsageError` if it cannot be read; what makes no sense is put aside."""
        self._file = LateWriter(path, JOURNAL_WAIT_S)
        self._book = _read(path)

    @property
    def done(self) -> tuple[DoneRecord, ...]:
        """The last orders that were begun, the newest last."""
        return self._book.done

    def knows(self, order_id: str) -> bool:
        """True once this order was begun, whatever came of it."""
        return any(record.id == order_id for record in self._book.done)

    def begin(self, order: Order, gang: str, stop: StopRecord | None = None) -> None:
        """Write down that this order is being carried out; raises `ActionError` if that is not possible."""
        book = self._begun(order, gang, stop)
        self._file.write(book)
        self._book = book

    def note(self, order: Order, gang: str) -> None:
        """As `begin`, of an order that does no harm twice: remembered also where `ActionError` is raised."""
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
        """What came of an order; remembered also where `ActionError` is raised."""
        done = tuple(
            replace(record, ack=ack) if record.id == ack.order else record
            for record in self._book.done
        )
        self._book = replace(self._book, done=done)
        self._file.write(self._book)

    def drop_stops(self, incidents: Collection[str]) -> None:
        """The containers of these are not stopped any more; remembered also where `ActionError` is raised."""
        stops = tuple(stop for stop in self._book.stops if stop.incident not in incidents)
        if len(stops) != len(self._book.stops):
            self._book = replace(self._book, stops=stops)
            self._file.write(self._book)

    @property
    def stops(self) -> Mapping[str, StopRecord]:
        """Stops in force, by incident."""
        return {stop.incident: stop for stop in self._book.stops}

    @property
    def unfinished(self) -> tuple[DoneRecord, ...]:
        """Orders that were begun by an agent that did not live to finish them."""
        return tuple(record for record in self._book.done if record.ack is None)

    def acks(self, gang: str) -> tuple[Ack, ...]:
        """What a gang's report contains about orders, the newest last."""
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
    """What is said of an order whose agent died over it."""
    text = "the agent was restarted while executing this order"
    return Ack(record.id, record.verb, AckResult.PARTIAL, None, text)
