"""Which way the threads of a job are sampled: a walk that a kernel refuses would cost more, and show nowhere else."""

from __future__ import annotations

import json

import pytest

from tests.vm import kernels
from tests.vm.guest import PYTHON, Guest

_WALKS = (6, 7)
"""Iterators that a program opens itself (kernel: kernel/bpf/task_iter.c, bpf_iter_task_new)."""


@pytest.mark.family("probes")
def test_a_kernel_that_can_walk_over_single_processes_does(
    guest: Guest, prepared: kernels.Prepared
) -> None:
    doctor = PYTHON.replace("python", "kcover-ebpf")
    done = guest.run(doctor, "doctor", "-o", "json", timeout_s=600)
    probes = {probe["probe"]: probe for probe in json.loads(done.output)["probes"]}
    assert probes["sample_threads"]["attached"]
    series = tuple(int(part) for part in prepared.version.split(".")[:2])
    assert probes["walk_threads"]["attached"] is (series >= _WALKS), probes["walk_threads"]
