"""The Lease by which an agent reports that it is alive, which of its reports still hold, and which orders are done.

A report is some KB that the API server checks by a schema; a Lease costs it a third of that. An unchanged report is
confirmed here, in two annotations of a built-in object, instead of being sent again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import decode, encode, wire
from kcover_ebpf.api.fault_report import Ack, PodRef
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.rank_snapshot import RankPace

API_VERSION = "coordination.k8s.io/v1"
_PREFIX = "agent."
"""Prefix of the name. It has a dot, which no release name has, so the name never equals that of a controller's
Lease.
"""
_SAID = "kcover.io/agent"
MOST_ACKS = 16
MOST_PACES = 256
"""The most ranks of one node: 25 KB."""
_MOST_VALID_S = 3600
"""More seconds than agents of 100,000 nodes need; a compromised agent must not be believed forever."""


@dataclass(frozen=True, slots=True)
class AgentLease:
    """Content of one renewal."""

    node: str
    renewed_s: float
    """Time of the renewal (unix seconds, clock of the node)."""
    valid_s: int
    """Seconds within which the agent renews it."""
    current: frozenset[int] = frozenset()
    """Sequence numbers of the agent's reports that still hold."""
    acks: tuple[Ack, ...] = ()
    paces: Mapping[int, tuple[RankPace, ...]] = field(default_factory=dict)
    """Sequence number of the gang's report -> how much its ranks here wait for those on other nodes."""


@dataclass(frozen=True, slots=True)
class _Paces:
    report: int
    ranks: tuple[RankPace, ...] = ()


@dataclass(frozen=True, slots=True)
class _Said:
    """Content of the annotation, as JSON."""

    current: tuple[int, ...] = ()
    acks: tuple[Ack, ...] = field(default=(), metadata=wire("acks", lenient=True))
    paces: tuple[_Paces, ...] = field(default=(), metadata=wire("paces", lenient=True))


def collection(namespace: str) -> str:
    """API path of the Leases of a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/leases"


def name_of(node: str) -> str:
    """The name of the Lease of a node's agent."""
    return _PREFIX + node


def object_of(lease: AgentLease, owner_pod: PodRef | None = None) -> dict[str, Any]:
    """The Lease object, owned by the agent's pod, so it is deleted with the pod. None: the agent runs in no pod."""
    current = tuple(sorted(lease.current))
    said = encode(_Said(current, lease.acks[-MOST_ACKS:], tuple(_bounded(lease.paces))))
    metadata: dict[str, Any] = {
        "name": name_of(lease.node),
        "annotations": {_SAID: json.dumps(said)},
    }
    if owner_pod is not None:
        pod = {"apiVersion": "v1", "kind": "Pod", "name": owner_pod.name, "uid": owner_pod.uid}
        metadata["ownerReferences"] = [pod]
    return {
        "apiVersion": API_VERSION,
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": lease.node,
            "leaseDurationSeconds": lease.valid_s,
            "renewTime": rfc3339.to_text(lease.renewed_s),
        },
    }


def _bounded(paces: Mapping[int, tuple[RankPace, ...]]) -> Iterator[_Paces]:
    left = MOST_PACES
    for report, ranks in paces.items():
        # all ranks of a gang on this node, or none: a dropped rank might be the slow one
        if len(ranks) <= left:
            left -= len(ranks)
            yield _Paces(report, ranks)


def node_of(metadata: Mapping[str, Any]) -> str | None:
    """Node of the agent that a Lease belongs to; None for any other Lease."""
    name = str(metadata.get("name") or "")
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


def lease_of(api: Mapping[str, Any]) -> AgentLease | None:
    """Content of an agent's Lease; None for any other Lease; raises `ObjectError`."""
    metadata = api.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    node, annotations = node_of(metadata), metadata.get("annotations")
    if node is None or not isinstance(annotations, Mapping) or _SAID not in annotations:
        return None
    spec = api.get("spec")
    spec = spec if isinstance(spec, Mapping) else {}
    valid_s = spec.get("leaseDurationSeconds")
    try:
        said = decode(_Said, json.loads(str(annotations[_SAID])), "annotation")
        renewed_s = rfc3339.from_text(str(spec.get("renewTime")))
    except (ObjectError, ValueError, RecursionError) as error:
        raise ObjectError(f"Lease {metadata.get('name')}: {error}") from error
    is_whole = isinstance(valid_s, int) and not isinstance(valid_s, bool)
    if not isinstance(valid_s, int) or not is_whole or not 0 < valid_s <= _MOST_VALID_S:
        text = f"expected 1 to {_MOST_VALID_S}"
        raise ObjectError(f"Lease {metadata.get('name')}: spec.leaseDurationSeconds: {text}")
    paces = {pace.report: pace.ranks for pace in said.paces}
    return AgentLease(node, renewed_s, valid_s, frozenset(said.current), said.acks, paces)
