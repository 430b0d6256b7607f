"""The fault matrix is complete, and every word in it is one that something understands."""

from string import ascii_lowercase

import pytest

from bench.faultbench import host_faults, plan, prepare
from bench.faultbench.scenario import CUDA, Culprit, Scenario
from kcover_ebpf.model.verdict import Cause, VerdictKind
from testbed.workloads import faults, phases

SCENARIOS = plan.SCENARIOS
IDS = [scenario.id for scenario in SCENARIOS]
INJECTED = (
    set(faults.FAULTS)
    | set(faults.MISMATCHES)
    | set(phases.STOPPING)
    | set(phases.GOING_ON)
    | {"skip-step", "closed-window", "slow-start", "slow-loader", "stuck-reader", "loop-heartbeats"}
    | {f"worker-{kind}" for kind in ("sleep", "read", "oom", "loop", "killed", "stopped")}
    | {"worker-spawned-stopped", "loader-late", "loaders-late"}
)


def test_faultbench_tables__ids_are_unique():
    assert len(set(IDS)) == len(IDS)


def test_faultbench_tables__every_demanded_line_of_the_lists_is_there():
    numbers = {scenario.number for scenario in SCENARIOS}
    wanted = [*range(1, 21), *range(23, 30), 32, 34, 42, 43, 44, 45]
    assert {str(n) for n in wanted} - numbers == set()
    assert set(ascii_lowercase[:18]) - numbers == set()


def test_faultbench_tables__about_a_quarter_is_held_out():
    for kind in (True, False):
        group = [s for s in SCENARIOS if s.is_fault == kind]
        assert 0.18 <= sum(s.held_out for s in group) / len(group) <= 0.32


@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
def test_faultbench_tables__every_word_is_known(scenario: Scenario):
    assert scenario.verdicts <= {kind.value for kind in VerdictKind}
    assert scenario.causes <= {cause.value for cause in Cause}
    assert scenario.inject in INJECTED | {""}
    assert scenario.host in set(host_faults.BEGIN) | {""}
    assert scenario.prepare in set(prepare.PREPARE) | {""}
    assert scenario.arm in set(host_faults.ARM) | {""}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
def test_faultbench_tables__something_happens(scenario: Scenario):
    assert scenario.inject or scenario.host or scenario.absent
    assert scenario.is_fault == bool(scenario.causes)
    assert scenario.is_fault or scenario.culprit is Culprit.NO_RANK
    assert scenario.effects


def test_faultbench_tables__loader_faults_only_where_there_is_a_loader():
    frameworks = {
        scenario.frameworks
        for scenario in SCENARIOS
        if scenario.inject.startswith("worker-") or scenario.inject in ("fork-with-lock", "rejoin")
    }
    assert frameworks == {("torch",), CUDA}
