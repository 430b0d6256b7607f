"""What an agent reports about the health of its node: `NodeHealth`, one object per node, with the node's name.

The schema, with a sentence about each field, is in charts/kcover-ebpf/crds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from kcover_ebpf.api import fault_report, rfc3339
from kcover_ebpf.api.codec import decode, encode, wire
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.health import Result

HEALTHS = f"/apis/{API_VERSION}/nodehealths"


@dataclass(frozen=True, slots=True)
class PartHealth:
    """Health of one check or one device; times are unix seconds by the clock of the node."""

    name: str
    """Name of the check, such as "nvml" or "plugin/license"; PCI address of a device."""
    result: Result
    since_s: float = field(metadata=wire("since", time=True))
    """Time of the first of the consecutive rounds with this result."""
    rounds: int = 1
    """Number of consecutive rounds with this result."""
    kind: str | None = None
    """Kind of device, "gpu" or "nic"; None for a check."""
    evidence: tuple[str, ...] = ()
    """Lines of evidence, worst first."""
    advice: str | None = None
    devices: tuple[str, ...] = ()
    """For a failed check: PCI addresses of the devices that explain the failure.

    Empty if something else failed, too, and from older agents that do not report it.
    """
    failed_s: float | None = field(default=None, metadata=wire("lastFailure", time=True))
    unmended: bool = False
    """True if it failed, and has neither passed nor warned since."""


@dataclass(frozen=True, slots=True)
class RememberedFault:
    """Recently announced faults of one device that ended a job or made it unfit."""

    device: str
    fault: str
    count: int
    last_s: float = field(metadata=wire("last", time=True))
    """When the newest one was announced."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The state after one round of inspection; times are unix seconds by the clock of the node."""

    node: str
    time_s: float = field(metadata=wire("time", time=True))
    """Time at which the round ended."""
    expires_after_s: int
    """Seconds after which, without another round, the node's health is unknown."""
    boot_id: str = field(metadata=wire("bootID"))
    result: Result
    """The worst result of the checks, and of what the kernel and drivers announced."""
    since_s: float = field(metadata=wire("since", time=True))
    clean_rounds: int
    """Consecutive rounds of this boot in which nothing failed and everything that had failed was seen to work."""
    clean_since_s: float | None = field(default=None, metadata=wire("cleanSince", time=True))
    reason: str | None = None
    """What failed or warns, in one line; absent if all is well."""
    gpus: str | None = None
    """For the table of kubectl: "8/8" GPUs pass; absent if there are none."""
    agent: str | None = None
    checks: tuple[PartHealth, ...] = ()
    devices: tuple[PartHealth, ...] = ()
    faults: tuple[RememberedFault, ...] = ()
    """Recent faults, also those that were cleared: a device that fails each day is not healthy."""


@dataclass(frozen=True, slots=True)
class ReceivedHealth:
    """A NodeHealth as a controller stores it."""

    health: NodeHealth
    written_s: float
    """When it was written (unix seconds, clock of the API server)."""

    def at(self, time_s: float) -> float:
        """A time by the node's clock in the API server's clock; too early by the report's transmission time."""
        return self.written_s - (self.health.time_s - time_s)

    def is_stale(self, now_s: float) -> bool:
        """True if its agent is silent, or our clock so wrong that it might be."""
        return abs(now_s - self.written_s) > self.health.expires_after_s


def health_of(api: Mapping[str, Any]) -> ReceivedHealth:
    """The health in a NodeHealth object; raises `ObjectError`, also if its node is not its name."""
    metadata = api.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = metadata.get("name", "?")
    try:
        health = decode(NodeHealth, api.get("status"), "status")
    except ObjectError as error:
        raise ObjectError(f"NodeHealth {name}: {error}") from error
    if health.node != name:
        raise ObjectError(f"NodeHealth {name}: it is about node {health.node!r}")
    return ReceivedHealth(health, _written_s(metadata))


def _written_s(metadata: Mapping[str, Any]) -> float:
    """The newest time of `managedFields`, else of creation; 0, which is stale, if neither can be read."""
    created = metadata.get("creationTimestamp")
    try:
        created_s = rfc3339.from_text(str(created))
    except ValueError:
        created_s = 0.0
    return max(created_s, fault_report.written_s(metadata) or 0.0)


def object_of(health: NodeHealth) -> dict[str, Any]:
    """The NodeHealth object that holds this health."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeHealth",
        "metadata": {"name": health.node},
        "status": encode(health),
    }
