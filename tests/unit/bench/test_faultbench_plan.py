"""Runs are chosen, named and timed the same way every time."""

from dataclasses import replace

from bench.faultbench import plan
from bench.faultbench.gpu_table import GPU
from bench.faultbench.plan import RunSpec
from bench.faultbench.scenario import CUDA

STOP = next(s for s in plan.SCENARIOS if s.id == "06-stop")


def test_all_runs__names_are_unique_and_the_order_is_stable():
    runs = plan.all_runs(repetitions=2)
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    assert names == [run.name for run in plan.all_runs(repetitions=2)]
    assert [run.repetition for run in runs] == sorted(run.repetition for run in runs)


def test_all_runs__ranks_that_wait_for_devices_are_a_bench_apart():
    matrix, gpu = plan.all_runs(), plan.all_runs(scenarios=GPU)
    assert not {run.framework for run in matrix} & set(CUDA)
    assert {run.framework for run in gpu} == set(CUDA)
    assert {run.scenario.number for run in gpu} == {f"G{number}" for number in range(1, 9)}


def test_all_runs__the_culprit_depends_on_the_run_and_is_a_rank():
    runs = plan.all_runs()
    assert all(0 <= run.culprit < run.world for run in runs)
    assert {run.culprit for run in runs if run.framework == "torch"} == {0, 1, 2, 3}


def test_run_spec__warm_up_has_enough_steps_and_seconds():
    assert RunSpec(STOP, "torch", 0.2).fault_step == 40
    assert RunSpec(STOP, "torch", 2.0).fault_step == 6
    assert RunSpec(STOP, "torch", 10.0).fault_step == 6
    assert RunSpec(STOP, "cuda-spin", 0.5).fault_step == 50
    assert RunSpec(STOP, "torch", 0.5, background=True).fault_step == 50
    assert RunSpec(replace(STOP, at_first_step=True), "torch", 2.0).fault_step == 0


def test_run_spec__a_verdict_is_waited_for_in_steps_when_they_are_long():
    assert RunSpec(STOP, "torch", 0.2).watch_s == 30
    assert RunSpec(STOP, "torch", 10.0).watch_s == 80


def test_select__by_id_number_framework_and_step():
    runs = plan.all_runs()
    assert {r.scenario.number for r in plan.select(runs, {"6"}, set(), set())} == {"6"}
    assert {r.name for r in plan.select(runs, {"06-stop"}, {"mpi"}, {2.0})} == {"06-stop.mpi.2s.0"}
    assert plan.select(runs, {"no such thing"}, set(), set()) == []


def test_quick_runs__the_quick_subset_is_torch_and_complete():
    runs = plan.quick_runs()
    assert {run.scenario.id for run in runs} == set(plan.QUICK)
    assert {run.framework for run in runs} == {"torch"}
