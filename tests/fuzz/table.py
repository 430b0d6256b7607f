"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import of_cluster, of_devices, of_jobs, of_kernel, of_operator, of_readers

TARGETS = {
    target.name: target
    for target in (
        *of_kernel.TARGETS,
        *of_jobs.TARGETS,
        *of_devices.TARGETS,
        *of_cluster.TARGETS,
        *of_operator.TARGETS,
        *of_readers.TARGETS,
    )
}
