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
"""Bundles that may wait. Each takes up to `BUNDLE_LIMIT_S`; a later one would be written after its gang was killed."""


@dataclass(frozen=True, slots=True)
class EvidenceRequest:
    """Which evidence of a gang to save, and for which order."""

    gang: Gang
    incident: str
    """Name of the Incident that ordered it."""
    verb: Verb
    found: Sequence[RunningContainer]
    """Running containers of the gang."""
    pods: Mapping[str, str]
    """Uid -> name of all pods that the order addresses, also of those in which no process runs any more."""
    with_logs: bool = True
    checkpointed: Sequence[tuple[str, str]] = ()
    """(pod, container) pairs of which a checkpoint is requested."""


@dataclass(frozen=True, slots=True)
class BundleWriter:
    """A bundle that `write` creates; `path` is known before it exists, because a stop must not wait."""

    path: str
    write: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Task:
    done: threading.Event
    end_s: float
    """Time (steady clock) until which a kill waits for this bundle."""


class EvidenceThread:
    """Used by one other thread. An unresponsive disk or file costs evidence only."""

    def __init__(self, on_error: Callable[[str], None], steady: Callable[[], float]) -> None:
        """`steady`: seconds of a clock that is never set."""
        self._on_error, self._steady = on_error, steady
        self._waiting: queue.Queue[tuple[BundleWriter, threading.Event]] = queue.Queue(
            _MOST_WAITING
        )
        self._tasks: dict[str, _Task] = {}
        """Incident uid -> bundle that is waiting or being written."""
        self._thread = threading.Thread(target=self._work, name="kcover-evidence", daemon=True)

    def write(self, incident: str, bundle: BundleWriter) -> None:
        """Queue the evidence for writing; never waits."""
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
        """Wait until the evidence is written or its time is up."""
        task = self._tasks.pop(incident, None)
        if task is not None:
            task.done.wait(max(0.0, task.end_s - self._steady()))

    def forget(self, incident: str) -> None:
        """Drop the task of an incident after which no kill follows."""
        self._tasks.pop(incident, None)

    def _work(self) -> None:
        while True:
            bundle, done = self._waiting.get()
            try:
                bundle.write()
            except Exception as error:  # noqa: BLE001 - the next gang's evidence must be written
                self._on_error(f"cannot save evidence: {error!r}")
            done.set()
