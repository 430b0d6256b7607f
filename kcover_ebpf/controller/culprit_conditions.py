"""A condition on the pod of each open incident's culprit, for `kubectl describe pod` and for programs that read pods.

It is set when the decision is made, and removed when the incident is closed. A separate thread compares the wanted
conditions with the written ones every few seconds: no decision waits for it, and a failed write is repeated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, Conflict, KcoverError, NotFound
from kcover_ebpf.output.formatting import culprit_text, printable
from kcover_ebpf.tunables.controller import CULPRIT_PASS_S, CULPRITS_AGAIN_S

_LOG = logging.getLogger(__name__)
TYPE = "kcover.io/Culprit"
_MOST_TEXT = 512
_OTHER_POD = 422
"""Status of the API server's answer to a patch with another pod's uid: the uid is immutable."""
_MOST_MARKED = 1000
"""The most pods that carry the condition at a time: the open incidents of ten namespaces."""


@dataclass(frozen=True, slots=True)
class MarkedPod:
    """One pod. The uid distinguishes it from a later pod of the same name."""

    namespace: str
    name: str
    uid: str


class CulpritConditions:
    """Run by the leader. Conditions of an earlier leader are removed if their incident was closed recently."""

    def __init__(self, cache: ObjectCache, writer: ApiWriter, may_work: Callable[[], bool]) -> None:
        """`may_work`: true while we lead and know all incidents."""
        self._store, self._writer, self._may_work = cache, writer, may_work
        self._written: dict[MarkedPod, dict[str, str]] = {}
        self._leads = False
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="culprits", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self.thread.start()

    def stop(self) -> None:
        """Make the thread end soon; the conditions stay for the next leader."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(CULPRIT_PASS_S):
            self.turn()

    def turn(self) -> None:
        """Write missing conditions, remove superfluous ones."""
        if not self._may_work():
            self._leads = False
            self._written.clear()
            return
        wanted = self._wanted()
        over = {pod for pod in self._written if pod not in wanted}
        if not self._leads:
            over |= {pod for pod in self._closed_lately() if pod not in wanted}
        self._leads = True
        for pod in over:
            if self._write(pod, None):
                self._written.pop(pod, None)
        for pod, condition in wanted.items():
            if self._written.get(pod) != condition and self._write(pod, condition):
                self._written[pod] = condition

    def _wanted(self) -> dict[MarkedPod, dict[str, str]]:
        found: dict[MarkedPod, dict[str, str]] = {}
        for incident, status in self._incidents():
            pod = _pod_of(incident, status)
            if pod is None or status.is_closed or status.phase is Phase.OPEN:
                continue
            if len(found) < _MOST_MARKED:
                found[pod] = condition_of(incident, status)
        return found

    def _closed_lately(self) -> Iterator[MarkedPod]:
        since_s = self._store.wall() - CULPRITS_AGAIN_S
        for incident, status in self._incidents():
            pod = _pod_of(incident, status)
            if (
                pod is not None
                and status.is_closed
                and (status.closed_s or status.last_s) > since_s
            ):
                yield pod

    def _incidents(self) -> Iterator[tuple[Incident, Status]]:
        for incident in list(self._store.incidents.values()):
            if incident.status is not None:
                yield incident, incident.status

    def _write(self, pod: MarkedPod, condition: dict[str, str] | None) -> bool:
        """True if the condition is now as wanted, or the pod no longer exists."""
        change = condition or {"type": TYPE, "$patch": "delete"}
        try:
            self._writer.pod_condition(pod.namespace, pod.name, pod.uid, change)
        except (NotFound, Conflict):
            return True
        except KcoverError as error:
            if isinstance(error, ApiError) and error.status == _OTHER_POD:
                return True
            _LOG.info("cannot set the condition of pod %s/%s: %s", pod.namespace, pod.name, error)
            return False
        return True


def _pod_of(incident: Incident, status: Status) -> MarkedPod | None:
    culprit = status.culprit
    if culprit is None or not culprit.pod or not culprit.pod_uid:
        return None
    return MarkedPod(incident.namespace, culprit.pod, culprit.pod_uid)


def condition_of(incident: Incident, status: Status) -> dict[str, str]:
    """The condition to write; unchanged while the incident is unchanged."""
    assert status.culprit is not None
    parts = (status.certainty, status.kind, status.cause)
    said = " ".join(part.value for part in parts if part is not None)
    text = f"incident {incident.name}: {said}: {culprit_text(status.culprit)}"
    words = "_".join(part.value for part in (status.kind, status.cause) if part is not None)
    since_s = status.at(Phase.DECIDED) or status.last_s
    return {
        "type": TYPE,
        "status": "True",
        "reason": "".join(word.title() for word in words.split("_")) or "Unknown",
        "message": printable(text)[:_MOST_TEXT],
        "lastTransitionTime": rfc3339.in_seconds(since_s),
    }
