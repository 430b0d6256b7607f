"""The init container that keeps a job from starting on a bad node, as it is found in a pod."""

from __future__ import annotations

from kcover_ebpf.api.pods import ContainerKind, Pod

CONTAINER = "kcover-preflight"
"""Its name; admission adds it (charts/kcover-ebpf/templates/admission/preflight.yaml)."""
FAILED = 81
"""Its exit code on a node that failed its inspection: no shell, runtime or framework uses this one."""


def failed(pod: Pod) -> bool:
    """True while the container that ended last with `FAILED` has not been started again."""
    return pod.deleted_s is None and any(
        each.name == CONTAINER
        and each.kind is ContainerKind.INIT
        and each.exit_code == FAILED
        and each.started_s is None
        for each in pod.containers
    )
