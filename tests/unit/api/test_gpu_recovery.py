"""A restarted job on GPUs, whose ranks burn a CPU from their first step on, is seen to have recovered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.incident import Phase, RestartMethod
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.ids import NS
from tests.unit.support.scripted_job import Stage
from tests.unit.support.simulated_cluster import Sim

LOADING_S = 10.0


class GpuSim(Sim):
    """The simulated cluster, whose agents judge ranks that load for some seconds and then burn a CPU for good."""

    def _report(self, node: str) -> ReceivedReport:
        seen = super()._report(node)
        stages: dict[str, tuple[float, Stage]] = self.__dict__.setdefault("stages", {})
        if not seen.report.trained:
            stages.pop(node, None)
            return seen
        began_s, stage = stages.setdefault(node, (self.now_s, Stage(connected=False)))
        while stage.now_ns < 1000 * NS + (self.now_s - began_s) * NS:
            for proc in stage.procs.values():
                if proc.mode == "train" and self.now_s - began_s > LOADING_S:
                    stage.become(proc, "run")
            stage.one_pass(NS)
        trained, stalled = stage.job.pace.trained, stage.job.attention.stalled
        return replace(seen, report=replace(seen.report, trained=trained, suspicious=stalled))


@pytest.mark.parametrize("method", [RestartMethod.IN_PLACE, RestartMethod.REPLACE])
def test_gpu_recovery__it_takes_less_than_30_s_from_the_first_step(method: RestartMethod) -> None:
    sim = GpuSim(in_place_rule=method is RestartMethod.IN_PLACE)
    sim.begin(method)
    status = sim.run(600)
    assert status.phase is Phase.RECOVERED
    assert status.lost is not None
    assert status.lost.first_progress_s is not None
    assert status.lost.first_progress_s < LOADING_S + 30
