"""Requests made by Events about pods: a restart (`kcover.io/need-recovery`, as kcover does), or a bad node."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.job_kinds import POD_UID, GangId, gang_of
from kcover_ebpf.api.pods import Pod, about_pod, pod_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.event_recorder import NEED_RECOVERY
from kcover_ebpf.errors import ApiError, ObjectError, OverBound
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.host.over_bounds import BOUNDS
from kcover_ebpf.kube.client import ApiClient, segment
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
from kcover_ebpf.recovery.nodes.node_plan import BAD_NODE
from kcover_ebpf.recovery.restart.demand import (
    ANNOTATION,
    RestartDemand,
    Trigger,
    is_method,
    method_of,
)
from kcover_ebpf.tunables.controller import TRIGGER_S, TRIGGERS_OF_ONE

_LOG = logging.getLogger(__name__)
FIELDS = "involvedObject.kind=Pod,type=Warning"
"""Field selector of the watch: only a small part of a cluster's Events match, kcover's among them."""
_BAD_NODE_REASON = "KcoverBadNode"
_MOST_WHY = 256
_Publish = Callable[[dict[str, str], str, str, bool], None]


class KcoverEvents:
    """Takes Events, and remembers those that request a restart."""

    def __init__(
        self,
        client: ApiClient,
        cache: ObjectCache,
        mark: Callable[[Pod], Pod] = lambda pod: pod,
        over: Callable[[OverBound], None] = lambda _: None,
        bad_node: Callable[[Pod, str, str], None] = lambda *_: None,
    ) -> None:
        """`mark`: sets the operators' job kind on a pod; `over`: called with what is not looked up.

        `bad_node`: called with a pod, the node that a user reports as bad, and the reason.
        """
        self._session, self._store, self._mark, self._over = client, cache, mark, over
        self._bad_node = bad_node
        self._asked: dict[str, list[float]] = {}
        """Namespace -> when its pods were looked up (unix seconds)."""

    def on_event(self, event: Event) -> None:
        """Take an Event that was written."""
        metadata = event.object.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        asked, word = annotations.get(NEED_RECOVERY) == "true", annotations.get(ANNOTATION)
        node = annotations.get(BAD_NODE)
        ours = (event.object.get("source") or {}).get("component") == "kcover-ebpf"
        if event.change is not Change.SET or not (asked or node) or ours:
            return
        if word is not None and not is_method(word):
            _LOG.info("an event requests a restart by an unknown method: %.40r", word)
            return
        age_s = self._store.wall() - _at_s(event.object, self._store.wall())
        if age_s >= TRIGGER_S:
            return
        pod = self._pod(event.object.get("involvedObject") or {})
        if pod is None:
            return
        if node:
            self._bad_node(pod, str(node), str(event.object.get("message") or ""))
        key = key_of(pod) if asked else None
        if key is not None:
            self._store.triggers[key] = self._trigger(event.object, pod, age_s, word)
            self._store.changed(key)

    def _pod(self, about: Mapping[str, Any]) -> Pod | None:
        """The pod of an Event; None if its name now belongs to another pod, or its namespace exceeded its lookups."""
        if not self._has_turn(str(about.get("namespace"))):
            who = about_pod(*(str(about.get(key) or "") for key in ("namespace", "name", "uid")))
            detail = f"{BOUNDS['events']}: {TRIGGERS_OF_ONE} in {TRIGGER_S:.0f} s, the others are ignored"
            self._over(OverBound("events", who, detail))
            return None
        try:
            where, name = (segment(str(about.get(key))) for key in ("namespace", "name"))
            pod = self._mark(pod_of(self._session.get(f"/api/v1/namespaces/{where}/pods/{name}")))
        except (ApiError, ObjectError) as error:
            _LOG.info("cannot read the pod that an event is about: %s", error)
            return None
        return pod if about.get("uid") in (None, "", pod.uid) else None

    def _has_turn(self, namespace: str) -> bool:
        """True if the namespace may cause another request: anyone who may write Events can write any number."""
        now_s = self._store.wall()
        for key in [
            key for key, trigger in list(self._store.triggers.items()) if trigger.is_over(now_s, ())
        ]:
            self._store.triggers.pop(key, None)
        self._asked = {
            text: kept
            for text, times in self._asked.items()
            if (kept := [at_s for at_s in times if abs(now_s - at_s) < TRIGGER_S])
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
        return Trigger(at_s, self._verdict(event, pod, age_s), pod.uid, demand)

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


class BadNodes:
    """Publishes users' reports of bad nodes as Events about the node. Only the leader does.

    Such a report is unverified, so nothing else follows: no node is cordoned, inspected or avoided.
    """

    def __init__(
        self, cache: ObjectCache, publish: _Publish, leads: Callable[[], bool] = lambda: True
    ) -> None:
        """`publish`: writes an Event, given object, reason, text, and whether it is a warning."""
        self._store, self._publish, self._leads = cache, publish, leads
        self._said: list[tuple[float, Pod, str, str]] = []
        """(unix seconds, pod, node, reason) of reports not published yet, for example because no controller leads."""
        self._lock = threading.Lock()

    def report(self, pod: Pod, node: str, why: str) -> None:
        """Take a report from a user who may write Events about the pod; ignored unless the node is the pod's own."""
        if pod.node != node:
            return
        with self._lock:
            self._said.append((self._store.wall(), pod, node, why))
            del self._said[:-TRIGGERS_OF_ONE]
        self.pass_on()

    def pass_on(self) -> None:
        """Publish recent reports about known nodes; does nothing unless this controller leads."""
        with self._lock:
            if not self._leads():
                return
            oldest_s = self._store.wall() - TRIGGER_S
            self._said = [
                said for said in self._said if said[0] > oldest_s and not self._published(*said[1:])
            ]

    def _published(self, pod: Pod, node: str, why: str) -> bool:
        raw = self._store.raw_nodes.get(node)
        if raw is None:
            return False
        about = {"apiVersion": "v1", "kind": "Node", "name": node}
        about["uid"] = str(raw["metadata"].get("uid", ""))
        said = "".join(text if text.isprintable() else " " for text in why[:_MOST_WHY])
        _LOG.info("namespace %s reports node %s as bad: %s", pod.namespace, node, said)
        self._publish(about, _BAD_NODE_REASON, f"pod {pod.namespace}/{pod.name}: {said}", True)
        return True


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
    if {ANNOTATION, BAD_NODE} & (metadata.get("annotations") or {}).keys():
        # the time may come from a laptop whose clock is wrong
        times = [metadata.get("creationTimestamp")]
    for text in times:
        if isinstance(text, str):
            try:
                return min(rfc3339.from_text(text), now_s)
            except ValueError:
                continue
    return now_s
