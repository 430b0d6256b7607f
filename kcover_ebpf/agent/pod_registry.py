"""Which pods of this node are watched, as which gang and by which name, and with which thresholds.

The threads that watch the API write the registry; the loop and the executor of orders read it.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kcover_ebpf.api import custom_kind
from kcover_ebpf.api.custom_kind import MOST_KINDS, JobKind
from kcover_ebpf.api.fault_policy import Level, NamedPolicy, holding
from kcover_ebpf.api.job_kinds import ARMING_LABEL, Gang, gang_of, is_job_pod, with_kind
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.pods import Pod, about_pod, kept_bytes, pod_of
from kcover_ebpf.api.policy_store import PolicyStore
from kcover_ebpf.api.shares import Shares
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, OverBound
from kcover_ebpf.host import over_bounds
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.settings import Policy

_MOST_PODS_BYTES, _MOST_OF_ONE_BYTES = 32 << 20, 8 << 20
"""Byte limits for the pods of all namespaces, and of one: 2,000 pods.

A pod whose author sets its node arrives here whatever the kubelet admits, and remains as an object when it is
refused.
"""


@dataclass(frozen=True, slots=True)
class LocalGang:
    """A gang's pods on this node, by name; includes pods that ended or are being deleted."""

    gang: Gang
    pods: tuple[Pod, ...]
    policy: Policy
    job_rules: tuple[JobRule, ...] = ()
    """Rules of its policy for the job's logs."""
    keeps_logs: bool = True
    """True if its policy lets the ends of its logs be kept as evidence."""

    @property
    def live(self) -> tuple[Pod, ...]:
        """Pods whose processes show something about the job: neither ended nor being deleted."""
        return tuple(pod for pod in self.pods if pod.deleted_s is None and not pod.ended)


class PodRegistry:
    """The latest pods and policies. Thread-safe; `version` grows with every change that concerns pods here."""

    def __init__(self, node: str, on_bad: Callable[[str], None] = lambda _: None) -> None:
        """`on_bad`: called with the error of an object that is ignored."""
        self.node = node
        self._on_bad = on_bad
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._shares = Shares(_MOST_PODS_BYTES, _MOST_OF_ONE_BYTES)
        self._policies = PolicyStore(on_bad, self._say_over)
        self._kinds: dict[str, JobKind] = {}
        """`JobKind` objects by name, in order of name."""
        self._gangs: Mapping[Gang, LocalGang] | None = None
        self.version = 0

    def on_pod(self, event: Event) -> None:
        """Take a changed pod of this node."""
        if event.change is Change.SYNCED:
            return
        uid = str((event.object.get("metadata") or {}).get("uid", ""))
        pod = None if event.change is Change.GONE else self._read(event.object)
        with self._lock:
            if pod is not None and not self._shares.take(uid, pod.namespace, kept_bytes(pod)):
                self._say_over(_over_share(pod))
                pod = None
            if pod is not None:
                self._pods[uid] = with_kind(pod, self._kinds.values())
            elif self._pods.pop(uid, None) is not None:
                self._shares.drop(uid)
            else:
                return
            self._changed()

    def _read(self, api: Mapping[str, Any]) -> Pod | None:
        try:
            return pod_of(api)
        except OverBound as error:
            self._say_over(error)
        except ObjectError as error:
            self._on_bad(str(error))
        return None

    def _say_over(self, over_bound: OverBound) -> None:
        over_bounds.count(over_bound.what)
        self._on_bad(str(over_bound))

    def on_policy(self, event: Event) -> None:
        """Take a changed FaultPolicy; an invalid one is not in force, nor is its previous version."""
        if event.change is Change.SYNCED:
            return
        with self._lock:
            take = self._policies.set if event.change is Change.SET else self._policies.remove
            namespace = take(event.object)
            # policies of other namespaces, and those without changes, must not cost a pass
            if any(pod.namespace == namespace for pod in self._pods.values()):
                self._changed()

    def on_kind(self, event: Event) -> None:
        """Take a changed JobKind; an invalid one is not in force, nor is its previous version."""
        name = str((event.object.get("metadata") or {}).get("name", ""))
        if not name:
            return
        with self._lock:
            before = self._kinds
            kinds = {other: kind for other, kind in before.items() if other != name}
            if event.change is Change.SET:
                try:
                    kinds[name] = custom_kind.kind_of(event.object).pods
                except ObjectError as error:
                    self._on_bad(str(error))
            self._kinds = dict(sorted(kinds.items())[:MOST_KINDS])
            if self._kinds == before:
                return
            marked = {uid: with_kind(pod, self._kinds.values()) for uid, pod in self._pods.items()}
            if marked != self._pods:
                self._pods = marked
                self._changed()

    def _changed(self) -> None:
        self._gangs = None
        self.version += 1

    def pod(self, uid: str) -> Pod | None:
        """The pod of this node with this uid, watched or not; None if there is none."""
        with self._lock:
            return self._pods.get(uid)

    def named(self, namespace: str, name: str) -> Pod | None:
        """The pod with this name; the living one if there are two."""
        with self._lock:
            found = [
                pod
                for pod in self._pods.values()
                if (pod.namespace, pod.name) == (namespace, name) and pod.node == self.node
            ]
        return min(found, key=lambda pod: pod.ended, default=None)

    def gangs(self) -> Mapping[Gang, LocalGang]:
        """Watched gangs that have pods here."""
        with self._lock:
            if self._gangs is None:
                self._gangs = self._gather()
            return self._gangs

    def _gather(self) -> dict[Gang, LocalGang]:
        found: dict[Gang, list[Pod]] = {}
        policies: dict[Gang, NamedPolicy] = {}
        for pod in sorted(self._pods.values(), key=lambda other_pod: other_pod.name):
            policy = holding(self._policies.of(pod.namespace), pod.namespace, pod.labels)
            if not _is_watched(pod, policy, self.node):
                continue
            gang = gang_of(pod)
            found.setdefault(gang, []).append(pod)
            if policy is not None:
                policies.setdefault(gang, policy)
        default = Policy()
        made = {}
        for gang, pods in found.items():
            named = policies.get(gang)
            settings = default if named is None else named.policy.settings()
            rules = () if named is None else named.policy.job_rules
            keeps = named is None or named.policy.evidence_logs
            made[gang] = LocalGang(gang, _without_copies(pods), settings, rules, keeps)
        return made

    @property
    def pod_count(self) -> int:
        return sum(len(gang.pods) for gang in self.gangs().values())


def _over_share(pod: Pod) -> OverBound:
    detail = f"its namespace has more than {_MOST_OF_ONE_BYTES >> 20} MiB of pods on this node: it is not watched"
    return OverBound("pods", about_pod(pod.namespace, pod.name, pod.uid), detail)


def _without_copies(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """The pods without those that have no controller, unless these are the majority.

    A debug copy of a pod has its labels and its environment; a sleeping copy resembles a hung rank.
    """
    controlled = tuple(pod for pod in pods if pod.controller is not None)
    return controlled if 2 * len(controlled) >= len(pods) else tuple(pods)


def _is_watched(pod: Pod, policy: NamedPolicy | None, node: str) -> bool:
    if pod.node != node or (policy is not None and policy.policy.action is Level.IGNORE):
        return False
    # with any value of the label: a job that is not armed (`is_armed`) is watched and left alone
    return policy is not None or is_job_pod(pod) or bool(pod.labels.get(ARMING_LABEL))


_LONGEST_NAME = 253
_NAME_HASH = 6


def key_of(gang: Gang) -> str:
    """A name for a gang that is unique in the cluster, also among gangs of another kind with the same name."""
    text = "\0".join(part for pair in gang.id.selector for part in pair)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_NAME_HASH]
    return f"{gang.namespace}/{gang.name}-{digest}"


def report_name(gang: Gang, node: str) -> str:
    """The name of a gang's report: a DNS subdomain, `JOB-HASH.NODE`.

    The part before the node's name has no dot: otherwise the agent of node b could take names of reports of node
    a.b.
    """
    name = key_of(gang).partition("/")[2]
    job, _, digest = name.rpartition("-")
    plain = re.sub(r"[^a-z0-9-]", "-", job.lower()).strip("-") or "job"
    room = _LONGEST_NAME - len(node) - len(digest) - 2
    return f"{plain[:room].rstrip('-')}-{digest}.{node}"
