"""Nodes that a job failed on and that its new pods avoid: noted on its incident, which the chart's admission reads."""

from __future__ import annotations

import logging

from kcover_ebpf.api.fault_policy import AvoidMode, FaultPolicy
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.facts.health import Result
from kcover_ebpf.recovery.restart.machine import RestartContext, avoided_node

_LOG = logging.getLogger(__name__)
_MOST_NODES = 8


class NodeAvoidance:
    """Adds and removes avoided nodes. Thread-safe as far as `ObjectCache` is."""

    def __init__(self, cache: ObjectCache, writer: ApiWriter) -> None:
        self._store, self._writer = cache, writer

    def begin(
        self, known_incident: Incident, context: RestartContext, policy: FaultPolicy
    ) -> Incident:
        """Add the node at fault to the nodes that the incident avoids; raises `ApiError`."""
        node = avoided_node(context)
        is_known = node is None or node in known_incident.avoids
        if is_known or policy.avoid.mode is AvoidMode.OFF:
            return known_incident
        assert node is not None
        nodes = (*known_incident.avoids, node)[-_MOST_NODES:]
        until_s = self._store.wall() + policy.avoid.seconds
        _LOG.info("new pods of %s avoid %s", known_incident.job.name, ", ".join(nodes))
        return self._write(known_incident, nodes, policy.avoid.mode, until_s)

    def lift(self, known_incident: Incident) -> None:
        """Remove avoided nodes whose time is over, or which inspections have cleared; raises `ApiError`."""
        if not known_incident.avoids:
            return
        is_over = self._store.wall() >= known_incident.avoids_until_s
        if is_over or all(self._is_cleared(node, known_incident) for node in known_incident.avoids):
            self._write(known_incident, (), AvoidMode.OFF, 0.0)

    def _is_cleared(self, node: str, known_incident: Incident) -> bool:
        """True once enough inspections in a row for uncordoning were clean, all of them after the restart."""
        received = self._store.healths.get(node)
        status = known_incident.status
        if received is None or received.is_stale(self._store.wall()) or status is None:
            return False
        health, rounds = received.health, FaultPolicy().node.clean_rounds
        since_s = health.clean_since_s
        began_s = status.restarts[-1].time_s if status.restarts else status.last_s
        is_clean = health.result is Result.PASS and health.clean_rounds >= rounds
        return is_clean and since_s is not None and received.at(since_s) > began_s

    def _write(
        self, known_incident: Incident, nodes: tuple[str, ...], mode: AvoidMode, until_s: float
    ) -> Incident:
        raw = self._writer.avoid(known_incident, nodes, mode, until_s)
        incident = self._store.read_incident(raw) if raw else None
        if incident is not None:
            self._store.put(incident)
        return incident or known_incident
