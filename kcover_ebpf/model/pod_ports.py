"""On which ports the processes of a job listen in one pod: what no other node can know."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PodPorts:
    """All TCP ports on which ranks, their children and their launchers listen in one pod."""

    pod_uid: str
    ports: tuple[int, ...] = ()
    """In ascending order, at most 64: a pod with more is not reported."""
