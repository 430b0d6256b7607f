"""Writes the evidence of stopped gangs in a separate thread: reading it may take longer than an order may wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.order import Verb
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S

_MOST_WAITING = 4
"""Bundles; each takes up to `BUNDLE_LIMIT_S`, and whoever comes later would be written after its gang was killed."""


@dataclass(frozen=True, slots=True)
class EvidenceRequest:
    """What is to be kept of a gang, and for which order."""

    gang: Gang
    incident: str
    """Name of the Incident whose order it is."""
    verb: Verb
    found: Sequence[RunningContainer]
    """Containers that run."""
    pods: Mapping[str, str]
    """Uid -> name of all that the order means, also of those in which nothing runs any more."""
    with_logs: bool = True
    checkpointed: Sequence[tuple[str, str]] = ()
    """(pod, container) of which a checkpoint is asked for."""


@dataclass(frozen=True, slots=True)
class BundleWriter:
    """A bundle that `write` makes; `path` is announced before it is there, for a stop must not wait."""

    path: str
    write: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Task:
    done: threading.Event
    end_s: float
    """No kill waits for it longer than that (steady clock)."""


class EvidenceThread:
    """Used by one other thread. A disk or a file that does not answer costs evidence only."""

    def __init__(self, on_error: Callable[[str], None], steady: Callable[[], float]) -> None:
        """`steady`: seconds, never set."""
        self._on_error, self._steady = on_error, steady
        self._waiting: queue.Queue[tuple[BundleWriter, threading.Event]] = queue.Queue(
            _MOST_WAITING
        )
        self._tasks: dict[str, _Task] = {}
        """By incident."""
        self._thread = threading.Thread(target=self._work, name="kcover-evidence", daemon=True)

    def write(self, incident: str, bundle: BundleWriter) -> None:
        """Have it written; never waits."""
        if self._thread.ident is None:
            self._thread.start()
        task = _Task(threading.Event(), self._steady() + BUNDLE_LIMIT_S)
        try:
            self._waiting.put_nowait((bundle, task.done))
        except queue.Full:
            self._on_error("cannot save evidence: that of other gangs is being written")
            return
        self._tasks[incident] = task

    def finish(self, incident: str) -> None:
        """Wait until it is written, or its time is up."""
        task = self._tasks.pop(incident, None)
        if task is not None:
            task.done.wait(max(0.0, task.end_s - self._steady()))

    def forget(self, incident: str) -> None:
        """No kill follows."""
        self._tasks.pop(incident, None)

    def _work(self) -> None:
        while True:
            bundle, done = self._waiting.get()
            try:
                bundle.write()
            except Exception as error:  # noqa: BLE001 - the next gang's evidence must be written
                self._on_error(f"cannot save evidence: {error!r}")
            done.set()
