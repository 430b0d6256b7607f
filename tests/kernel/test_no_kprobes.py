"""A kernel without kprobes, beside a GPU driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcover_ebpf.devices import families
from kcover_ebpf.devices.attach import Attachments
from kcover_ebpf.kernel import attach_points, features
from kcover_ebpf.kernel.probes import Refusal
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings

pytestmark = pytest.mark.needs("root", "bpf")


def test_probes_of_a_driver_are_not_tried_where_nothing_can_hang_on_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one that is tried in vain has the kernel's table of symbols searched: 100 ms, at each of five passes."""
    searched: list[str] = []
    monkeypatch.setattr(attach_points, "variant", searched.append)
    monkeypatch.setattr(features, "has_kprobes", lambda: False)
    (tmp_path / "sys/module" / families.GPU_MODULE).mkdir(parents=True)
    with KernelSampler.open(Settings()) as kernel:
        found = Attachments(kernel.maps, Settings(), tmp_path, pin_driver=False)
        while found.driver_waits:
            found.reload_gpu()
        fates = {
            (status.reason, status.refusal) for status in found.statuses if status.family == "gpu"
        }
        found.close()
    assert fates == {("this kernel has no kprobes", Refusal.NO_HOOK)}
    assert searched == []
