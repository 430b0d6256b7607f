"""The part of an Incident that agents read: what they must do with a gang, and what is known of its past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from kcover_ebpf.api.codec import decode, wire
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.json_values import map_of
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.silence_summary import SilenceSummary


class Verb(Enum):
    """The kinds of orders (docs/decisions/0005)."""

    STOP = "Stop"
    KILL = "Kill"
    RESUME = "Resume"
    KILL_TERMINATING = "KillTerminating"
    SNAPSHOT = "Snapshot"
    """Save evidence, and signal no process."""
    SAVE = "Save"
    """Send `signal` to the ranks of all pods except `spared`; they are expected to save a checkpoint."""


class SaveSignal(Enum):
    """Signals that may ask a rank to save; their default action ends a process, so only one that handles it gets it."""

    USR1 = "SIGUSR1"
    USR2 = "SIGUSR2"


@dataclass(frozen=True, slots=True)
class Order:
    """One order; times are unix seconds by the controller's clock."""

    id: str
    verb: Verb
    selector: Mapping[str, str]
    """Selector of the gang, evaluated by `job_kinds.selects`."""
    created_before_s: float = field(metadata=wire("createdBefore", time=True))
    """Pods created later belong to the next start, and the order does not address them."""
    expires_s: float = field(metadata=wire("expires", time=True))
    signal: SaveSignal | None = None
    """Signal of a Save order; None for all others."""
    spared: tuple[str, ...] = ()
    """Uids of pods that a Save order does not address."""


@dataclass(frozen=True, slots=True)
class OrderedIncident:
    """The part of an Incident that an agent reads."""

    namespace: str
    name: str
    uid: str
    phase: str
    """Phase of the incident; empty before the controller wrote one."""
    order: Order | None


def incident_of(api: Mapping[str, Any]) -> OrderedIncident:
    """The order in an Incident object; raises `ObjectError`."""
    metadata = api.get("metadata")
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        raise ObjectError("Incident: metadata.name: missing")
    status = api.get("status")
    status = status if isinstance(status, Mapping) else {}
    name = str(metadata["name"])
    try:
        raw = status.get("order")
        order = None if raw is None else decode(Order, raw, "status.order")
    except ObjectError as error:
        raise ObjectError(f"Incident {name}: {error}") from error
    if order is not None and not order.selector:
        raise ObjectError(f"Incident {name}: status.order.selector: empty selects everything")
    return OrderedIncident(
        namespace=str(metadata.get("namespace", "")),
        name=name,
        uid=str(metadata.get("uid", "")),
        phase=str(status.get("phase", "")),
        order=order,
    )


def past_of(api: Mapping[str, Any]) -> tuple[GangId, SilenceSummary] | None:
    """The gang of an Incident object, and what is known of its job's silences.

    None if it says nothing, or nothing that can be read: an order in the same object must not depend on it.
    """
    metadata, spec, status = (map_of(api.get(key)) for key in ("metadata", "spec", "status"))
    selector = map_of(spec.get("selector"))
    try:
        past = decode(SilenceSummary, status.get("silences"))
    except ObjectError:
        return None
    labels = {str(key): str(value) for key, value in selector.items()}
    return (GangId.of(str(metadata.get("namespace", "")), labels), past) if labels else None
