"""What `run` exports to Prometheus: what the sensor says, and what was done about it (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.output.metrics import MetricsSink
from kcover_ebpf.settings import Act

if TYPE_CHECKING:
    from kcover_ebpf.kernel.probes import ProbeStatus


class RunMetrics(MetricsSink):
    """All series of one `run`."""

    def __init__(
        self,
        read_probes: Callable[[], Iterable[ProbeStatus]],
        read_lost: Callable[[], Mapping[str, int]],
    ) -> None:
        super().__init__(read_probes, read_lost)
        self._actions = self._counter(
            "kcover_actions", "Snapshots, shutdowns and restarts performed.", "act"
        )
        for act in (Act.SNAPSHOT, Act.SHUTDOWN, Act.RESTART):
            self._actions.labels(act.value)

    def on_action(self, decision: Decision, text: str) -> None:  # noqa: ARG002
        """Count it."""
        self._actions.labels(decision.act.value).inc()
