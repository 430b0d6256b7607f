"""Job kinds that operators describe (`JobKind`): what is known of them, and whether we may restart them.

A kind is used once the API server serves it and this ServiceAccount has the permissions for it. Until then its jobs
are reported on but not restarted, and its condition Ready, an Event and a metric name what is missing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kcover_ebpf.api import custom_kind, rfc3339
from kcover_ebpf.api.custom_kind import MOST_KINDS, CustomKind, JobKind
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.job_kinds import with_kind
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import KcoverError, NotFound, ObjectError
from kcover_ebpf.kube.client import ApiClient, segment
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.restart.custom_methods import (
    KindReason,
    KindState,
    clash,
    needed,
    rows_of,
)
from kcover_ebpf.recovery.restart.methods import KindMethods, restarts
from kcover_ebpf.tunables.controller import KIND_CHECKED_S, KIND_SETTLE_S

JOB_KINDS = f"/apis/{API_VERSION}/jobkinds"
REASON = "KcoverJobKindRefused"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LOG = logging.getLogger(__name__)
_UNKNOWN = KindState(KindReason.NOT_CHECKED, "its permissions have not been checked yet")
Publish = Callable[[dict[str, str], str, str, bool], None]


class KindRegistry:
    """Thread-safe; checks in its own thread, at each change and at intervals."""

    def __init__(
        self,
        client: ApiClient,
        writes: Callable[[], ApiClient],
        publish: Publish,
        wall: Callable[[], float],
    ) -> None:
        """`writes`: raises `ActionError` unless we lead. `wall`: unix seconds."""
        self._session, self._writes, self._publish, self._wall = client, writes, publish, wall
        self._lock = threading.Lock()
        self._kinds: dict[str, CustomKind] = {}
        self._states: dict[str, KindState] = {}
        self._invalid: dict[str, tuple[dict[str, str], str]] = {}
        """Name -> (identity, error) of objects that cannot be read."""
        self._said: dict[str, KindState] = {}
        self._table = restarts()
        self._rows: tuple[JobKind, ...] = ()
        self._stop, self._news = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, name="job kinds", daemon=True)
        """The thread, so that its liveness can be checked."""

    def start(self) -> None:
        """Start the checking thread; returns at once."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end; does not wait for it."""
        self._stop.set()
        self._news.set()

    @property
    def table(self) -> KindMethods:
        """How each kind is restarted, including the operators' kinds."""
        return self._table

    def mark(self, pod: Pod) -> Pod:
        """The pod with the operators' kind whose labels it carries, if any."""
        return with_kind(pod, self._rows)

    def on_kind(self, event: Event) -> None:
        """Take a JobKind that was written or deleted."""
        metadata = event.object.get("metadata") or {}
        name = str(metadata.get("name", ""))
        if not name:
            return
        with self._lock:
            before = self._kinds.pop(name, None)
            self._invalid.pop(name, None)
            if event.change is Change.SET:
                self._take(name, event.object)
            if self._kinds.get(name) != before:
                self._states.pop(name, None)
            self._build()
        self._news.set()

    def _take(self, name: str, api: Mapping[str, Any]) -> None:
        about = custom_kind.about(name, str((api.get("metadata") or {}).get("uid", "")))
        try:
            self._kinds[name] = custom_kind.kind_of(api)
        except ObjectError as error:
            self._invalid[name] = about, str(error)

    def _build(self) -> None:
        kinds = sorted(self._kinds.values(), key=lambda kind: kind.name)
        # if two objects describe one kind, the first by name is used, even while it is refused
        rows = [row for kind in kinds for row in rows_of(kind, self._state(kind.name))]
        self._table = restarts().with_kinds(
            {(row.group, row.kind): row for row in rows[::-1]}.values()
        )
        self._rows = tuple(kind.pods for kind in kinds if kind.pods.gang)

    def _state(self, name: str) -> KindState:
        return self._states.get(name, _UNKNOWN)

    def counts(self) -> Mapping[str, int]:
        """Number of JobKind objects by the reason of their condition."""
        with self._lock:
            found = Counter(self._state(name).reason.value for name in self._kinds)
            found[KindReason.INVALID.value] += len(self._invalid)
        return {reason.value: found[reason.value] for reason in KindReason}

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.wait(KIND_CHECKED_S)
            # several arrive at once when the watch begins
            if self._stop.wait(KIND_SETTLE_S):
                return
            self._news.clear()
            self.check()

    def check(self) -> None:
        """Check served versions and permissions of each kind, and publish what is missing."""
        with self._lock:
            kinds, invalid = list(self._kinds.values()), dict(self._invalid)
        for kind in kinds:
            try:
                state = self._found(kind, kinds)
            except KcoverError as error:
                _LOG.info("cannot check JobKind %s: %s", kind.name, error)
                continue
            with self._lock:
                if self._kinds.get(kind.name) == kind and self._states.get(kind.name) != state:
                    self._states[kind.name] = state
                    self._build()
            self._say(kind.about, kind.generation, kind.ready, state)
        for about, why in invalid.values():
            self._say(about, 0, None, KindState(KindReason.INVALID, why))

    def _found(self, kind: CustomKind, kinds: list[CustomKind]) -> KindState:
        if (found := clash(kind, kinds)) is not None:
            return found
        if sorted(other.name for other in kinds).index(kind.name) >= MOST_KINDS:
            return KindState(KindReason.TOO_MANY, f"there are more than {MOST_KINDS} JobKinds")
        if not self._is_served(kind):
            text = f"the API server has no {kind.plural}.{kind.group}: install its CRD"
            return KindState(KindReason.NOT_SERVED, text)
        missing = [one for one in needed(kind) if not self._may(one.group, one.resource, one.verb)]
        if missing:
            what = ", ".join(one.text for one in missing)
            text = f"the controller may not {what}: add it to the chart's controller.jobKinds"
            return KindState(KindReason.FORBIDDEN, text)
        return KindState(KindReason.PERMITTED)

    def _is_served(self, kind: CustomKind) -> bool:
        try:
            group = self._session.get(f"/apis/{segment(kind.group)}")
        except NotFound:
            return False
        for version in group.get("versions") or ():
            listed = self._session.get(f"/apis/{version.get('groupVersion')}")
            for resource in listed.get("resources") or ():
                if (resource.get("name"), resource.get("kind")) == (kind.plural, kind.kind):
                    return True
        return False

    def _may(self, group: str, resource: str, verb: str) -> bool:
        attributes = {"group": group, "resource": resource, "verb": verb}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._session.create(_REVIEWS, body)
        return (answer.get("status") or {}).get("allowed") is True

    def _say(
        self,
        about: dict[str, str],
        generation: int,
        ready: tuple[str, str] | None,
        state: KindState,
    ) -> None:
        name = about["name"]
        if self._said.get(name) == state and ready in (None, (state.reason.value, state.text)):
            return
        try:
            self._writes().merge_patch(
                f"{JOB_KINDS}/{segment(name)}/status",
                {"status": {"conditions": [_condition(state, generation, self._wall())]}},
            )
        except KcoverError as error:
            # another replica leads, and writes it
            _LOG.info("cannot write the condition of JobKind %s: %s", name, error)
            return
        self._said[name] = state
        if not state.reason.is_ready:
            _LOG.warning("JobKind %s: %s", name, state.text)
            self._publish(about, REASON, f"{state.reason.value}: {state.text}", True)


def _condition(state: KindState, generation: int, now_s: float) -> dict[str, object]:
    return {
        "type": "Ready",
        "status": "True" if state.reason.is_ready else "False",
        "reason": state.reason.value,
        "message": state.text,
        "observedGeneration": generation,
        "lastTransitionTime": rfc3339.to_text(now_s),
    }
