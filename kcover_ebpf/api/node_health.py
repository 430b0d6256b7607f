"""What an agent says about the health of its node: `NodeHealth`, one object a node, of the node's name.

The schema, with a sentence about each field, is charts/kcover-ebpf/crds.
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
    """One check, or one device; times are unix seconds by the clock of the node."""

    name: str
    """Of the check, such as "nvml" or "plugin/license"; of a device its PCI address."""
    result: Result
    since_s: float = field(metadata=wire("since", time=True))
    """The first round of those in a row that had this result."""
    rounds: int = 1
    """Rounds in a row with this result."""
    kind: str | None = None
    """Of a device: "gpu" or "nic"."""
    evidence: tuple[str, ...] = ()
    """Worst first."""
    advice: str | None = None
    devices: tuple[str, ...] = ()
    """Of a check that failed: PCI addresses of the devices that explain it. Empty where anything else failed, too, and
    where an older agent does not say."""
    failed_s: float | None = field(default=None, metadata=wire("lastFailure", time=True))
    unmended: bool = False
    """It failed, and has neither passed nor warned since."""


@dataclass(frozen=True, slots=True)
class RememberedFault:
    """Announced faults of one device that ended a job or made it unfit, lately."""

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
    """The end of the round."""
    expires_after_s: int
    """Without another round within so many seconds nothing is known of the node's health."""
    boot_id: str = field(metadata=wire("bootID"))
    result: Result
    """The worst of the checks, and of what the kernel and drivers announced."""
    since_s: float = field(metadata=wire("since", time=True))
    clean_rounds: int
    """Rounds in a row, of this boot, in which nothing failed and all that ever failed was seen to work."""
    clean_since_s: float | None = field(default=None, metadata=wire("cleanSince", time=True))
    reason: str | None = None
    """What failed or warns, in one line; absent where all is well."""
    gpus: str | None = None
    """For the table of kubectl: "8/8" GPUs pass; absent where there are none."""
    agent: str | None = None
    checks: tuple[PartHealth, ...] = ()
    devices: tuple[PartHealth, ...] = ()
    faults: tuple[RememberedFault, ...] = ()
    """Whatever became of them: a device that fails each day is not well."""


@dataclass(frozen=True, slots=True)
class ReceivedHealth:
    """A NodeHealth as a controller has it."""

    health: NodeHealth
    written_s: float
    """Unix seconds, by the clock of the API server."""

    def at(self, time_s: float) -> float:
        """A time by the clock of the node as the API server would say it; early by the way of the report."""
        return self.written_s - (self.health.time_s - time_s)

    def is_stale(self, now_s: float) -> bool:
        """True if its agent is silent, or our clock so wrong that it might be."""
        return abs(now_s - self.written_s) > self.health.expires_after_s


def health_of(api: Mapping[str, Any]) -> ReceivedHealth:
    """The health in a NodeHealth object; raises `ObjectError`, also if it is not about the node of its name."""
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
    """The newest time of `managedFields`, else of creation; 0, which is stale, where neither can be read."""
    created = metadata.get("creationTimestamp")
    try:
        created_s = rfc3339.from_text(str(created))
    except ValueError:
        created_s = 0.0
    return max(created_s, fault_report.written_s(metadata) or 0.0)


def object_of(health: NodeHealth) -> dict[str, Any]:
    """The NodeHealth object."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeHealth",
        "metadata": {"name": health.node},
        "status": encode(health),
    }
