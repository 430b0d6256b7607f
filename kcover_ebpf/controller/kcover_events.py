"""kcover's own way to ask for a recovery: an Event about a pod with the annotation `kcover.io/need-recovery`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.gang_id import GangId
from kcover_ebpf.api.job_kinds import POD_UID, gang_of
from kcover_ebpf.api.pods import Pod, about_pod, pod_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.event_recorder import NEED_RECOVERY
from kcover_ebpf.controller.trigger import Trigger
from kcover_ebpf.errors import ApiError, ObjectError, OverBound
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.host.over_bounds import BOUNDS
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.paths import segment
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.recovery.restart.demand import ANNOTATION, RestartDemand, is_method, method_of
from kcover_ebpf.tunables.controller import TRIGGER_S, TRIGGERS_OF_ONE

_LOG = logging.getLogger(__name__)
FIELDS = "involvedObject.kind=Pod,type=Warning"
"""Of all Events of a cluster these are few; kcover's are among them."""


class KcoverEvents:
    """Takes Events, and remembers those that ask for a recovery."""

    def __init__(
        self,
        client: ApiClient,
        cache: ObjectCache,
        mark: Callable[[Pod], Pod] = lambda pod: pod,
        over: Callable[[OverBound], None] = lambda _: None,
    ) -> None:
        """`mark`: notes on a pod which of the operators' kinds it is of; `over`: receives what is not looked up."""
        self._session, self._store, self._mark, self._over = client, cache, mark, over
        self._asked: dict[str, list[float]] = {}
        """By namespace, when one of its pods was asked for (unix seconds)."""

    def on_event(self, event: Event) -> None:
        """An Event was written."""
        metadata = event.object.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        asked, word = annotations.get(NEED_RECOVERY) == "true", annotations.get(ANNOTATION)
        ours = (event.object.get("source") or {}).get("component") == "kcover-ebpf"
        if event.change is not Change.SET or not asked or ours:
            return
        if word is not None and not is_method(word):
            _LOG.info("an event requests a restart by an unknown method: %.40r", word)
            return
        age_s = self._store.wall() - _at_s(event.object, self._store.wall())
        if age_s >= TRIGGER_S:
            return
        about = event.object.get("involvedObject") or {}
        if not self._has_turn(str(about.get("namespace"))):
            who = about_pod(*(str(about.get(key) or "") for key in ("namespace", "name", "uid")))
            detail = f"{BOUNDS['events']}: {TRIGGERS_OF_ONE} in {TRIGGER_S:.0f} s, the others are ignored"
            self._over(OverBound("events", who, detail))
            return
        try:
            where, name = (segment(str(about.get(key))) for key in ("namespace", "name"))
            pod = self._mark(pod_of(self._session.get(f"/api/v1/namespaces/{where}/pods/{name}")))
        except (ApiError, ObjectError) as error:
            _LOG.info("cannot read the pod whose recovery an event requests: %s", error)
            return
        if about.get("uid") not in (None, "", pod.uid):
            return
        key = key_of(pod)
        if key is not None:
            self._store.triggers[key] = self._trigger(event.object, pod, age_s, word)
            self._store.changed(key)

    def _has_turn(self, namespace: str) -> bool:
        """Each Event costs a request, and whoever may write Events writes any number."""
        now_s = self._store.wall()
        for key in [
            key
            for key, trigger in list(self._store.triggers.items())
            if now_s - trigger.at_s >= TRIGGER_S
        ]:
            self._store.triggers.pop(key, None)
        self._asked = {
            text: kept
            for text, times in self._asked.items()
            if (kept := [at_s for at_s in times if now_s - at_s < TRIGGER_S])
        }
        times = self._asked.setdefault(namespace, [])
        if len(times) >= TRIGGERS_OF_ONE:
            return False
        times.append(now_s)
        return True

    def _trigger(
        self, event: Mapping[str, Any], pod: Pod, age_s: float, word: str | None
    ) -> Trigger:
        at_s, demand = self._store.wall() - age_s, None
        if word is not None:
            text = f"restart requested by an Event of {_sender(event)}: {event.get('message', '')}"
            demand = RestartDemand(at_s, text[:512], method_of(word))
        return Trigger(at_s, self._verdict(event, pod, age_s), demand)

    def _verdict(self, event: Mapping[str, Any], pod: Pod, age_s: float) -> GangVerdict:
        who = _sender(event)
        text = f"an event from {who} requests recovery: {event.get('reason')} {event.get('message', '')}"[
            :512
        ]
        now_s = self._store.wall()
        verdict = Verdict(
            job=pod.namespace,
            incident="",
            kind=VerdictKind.CRASHED,
            cause=Cause.UNKNOWN,
            time_s=now_s,
            since_s=now_s - age_s,
            culprit=Culprit(pod=pod.name, pod_uid=pod.uid, node=pod.node or None),
            evidence=(Evidence(EvidenceKind.EVENT, text),),
            certainty=Certainty.ANNOUNCED,
            acts_at_s=now_s - age_s,
            acts_why="an Event requests it",
        )
        return GangVerdict(verdict)


def key_of(pod: Pod) -> GangId | None:
    """The gang of a pod; None for a bare pod."""
    gang_id = gang_of(pod).id
    return None if POD_UID in gang_id.labels else gang_id


def _sender(event: Mapping[str, Any]) -> str:
    return str(
        (event.get("source") or {}).get("component") or event.get("reportingComponent") or "?"
    )


def _at_s(event: Mapping[str, Any], now_s: float) -> float:
    metadata = event["metadata"]
    times = [event.get(key) for key in ("lastTimestamp", "eventTime", "firstTimestamp")]
    if ANNOTATION in (metadata.get("annotations") or {}):
        # it comes from a laptop, whose clock may be wrong
        times = [metadata.get("creationTimestamp")]
    for text in times:
        if isinstance(text, str):
            try:
                return min(rfc3339.from_text(text), now_s)
            except ValueError:
                continue
    return now_s
