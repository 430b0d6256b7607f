"""Callbacks of the order executor: who is informed of orders, and who resumes what they stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kcover_ebpf.agent.orders.evidence_thread import BundleWriter, EvidenceRequest
from kcover_ebpf.api.fault_report import Ack
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Listeners:
    """Callbacks; all are called in the order thread, and must not block unless their description allows it."""

    acked: Callable[[Gang, Ack], None]
    killed: Callable[[Gang], None]
    """The gang's processes were ended by us: their death is no fault."""
    evidence: Callable[[EvidenceRequest], BundleWriter]
    """Saves evidence of a gang, before it is killed if it is. Another thread writes it."""
    before_stop: Callable[[EvidenceRequest], None]
    """Reads what only running processes can answer; may take `GPU_DUMP_WAIT_S`."""
    passed_over: Callable[[str], None]
    ranks: Callable[[Gang], Collection[int]]
    """Live ranks of the gang on this node. Called only before a Save order, and may take a second."""


class StopHolder(Protocol):
    """Resumes stopped processes if this process dies."""

    def hold(self, incident: str, pinned: Mapping[int, int]) -> None:
        """Register processes about to be stopped (pid -> pidfd); if it raises `ActionError`, they must not be stopped.

        A stop that is renewed registers them again, and so begins the longest time that they stay stopped anew.
        """
        ...

    def drop(self, incident: str) -> None:
        """Forget processes that were resumed or killed. Never fails."""
        ...

    def tend(self) -> None:
        """Called every few seconds: restart the helper if it is needed. Never fails."""
        ...
