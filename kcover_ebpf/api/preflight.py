"""The init containers that keep a job from starting on a bad node: how they are recognised in a pod."""

from __future__ import annotations

from kcover_ebpf.api.pods import ContainerKind, Pod
from kcover_ebpf.tunables.host import PREFLIGHT_PASSES_S

CONTAINER = "kcover-preflight"
"""Name of the container that admission adds (charts/kcover-ebpf/templates/admission/preflight.yaml)."""
BANDWIDTH = "kcover-bandwidth"
"""Name of the next one, added if the job asks for it: it measures between all pods of the job
(inspection/bandwidth).
"""
FAILED = 81
"""Exit code of the check on a bad node: no shell, runtime or framework uses this one."""


def is_kept_waiting(pod: Pod, now_s: float) -> bool:
    """True if the preflight has run for longer than a passing check takes. `now_s`: unix seconds."""
    return pod.deleted_s is None and any(
        container.started_s is not None and now_s - container.started_s > PREFLIGHT_PASSES_S
        for container in pod.containers
        if (container.name, container.kind) == (CONTAINER, ContainerKind.INIT)
    )


def is_slow(pod: Pod) -> bool:
    """True while the bandwidth check that last ended with `FAILED` has not been started again."""
    return pod.deleted_s is None and any(
        container.started_s is None
        and container.last_end is not None
        and container.last_end.code == FAILED
        for container in pod.containers
        if (container.name, container.kind) == (BANDWIDTH, ContainerKind.INIT)
    )
