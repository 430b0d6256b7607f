"""Whom the executor of orders calls: who is informed, and who lets go of what it stops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from kcover_ebpf.agent.orders.evidence_thread import BundleWriter, EvidenceRequest
from kcover_ebpf.api.fault_report import Ack
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Listeners:
    """Callbacks; all are called in the order thread, and must not wait where nothing else is said."""

    acked: Callable[[Gang, Ack], None]
    killed: Callable[[Gang], None]
    """The gang's processes were ended by us: what is seen of their death is no fault."""
    evidence: Callable[[EvidenceRequest], BundleWriter]
    """What is to be kept of a gang, before it is killed where it is. Another thread writes it."""
    before_stop: Callable[[EvidenceRequest], None]
    """Reads what only processes that run can answer; may take `GPU_DUMP_WAIT_S`."""
    passed_over: Callable[[str], None]
    ranks: Callable[[Gang], Collection[int]]
    """Processes of the gang on this node that are ranks and live. Asked before a Save alone, and may take a second."""


class StopHolder(Protocol):
    """Lets go of what is stopped, should this process be gone."""

    def hold(self, incident: str, descriptors: Sequence[int]) -> None:
        """Of processes that are about to be stopped; raises `ActionError`, and then they must not be."""
        ...

    def drop(self, incident: str) -> None:
        """They were resumed or killed. Never fails."""
        ...

    def tend(self) -> None:
        """Called every few seconds: be there for what is held. Never fails."""
        ...
