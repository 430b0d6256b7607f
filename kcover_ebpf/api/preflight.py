"""The init containers that keep a job from starting on a bad node, as they are found in a pod."""

from __future__ import annotations

from kcover_ebpf.api.pods import ContainerKind, Pod

CONTAINER = "kcover-preflight"
"""Its name; admission adds it (charts/kcover-ebpf/templates/admission/preflight.yaml)."""
BANDWIDTH = "kcover-bandwidth"
"""The one after it, where the job asks for it: it measures between all pods of the job (inspection/bandwidth)."""
FLOOR = "kcover.io/bandwidth-floor"
"""Annotation of a pod by which its job asks for that: GB/s (10^9) of bus bandwidth."""
FAILED = 81
"""Exit code of both on a node that failed: no shell, runtime or framework uses this one."""


def failed(pod: Pod, container: str = CONTAINER) -> bool:
    """True while the container that ended last with `FAILED` has not been started again."""
    return pod.deleted_s is None and any(
        each.name == container
        and each.kind is ContainerKind.INIT
        and each.exit_code == FAILED
        and each.started_s is None
        for each in pod.containers
    )
