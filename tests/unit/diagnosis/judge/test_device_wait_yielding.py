"""Ranks that yield until their devices are done: their calls are those of MPI's busy waiters."""

from __future__ import annotations

from tests.unit.gpu_ranks import SYNCHRONIZE
from tests.unit.scripted_job import Stage
from tests.unit.seen_verdicts import faults


def test_device_wait_yielding__a_library_of_a_driver_that_is_loaded_late_is_known_before_a_job_trains() -> (
    None
):
    """Where all code that a thread is found in is known: the C library's, and its own."""
    stage = Stage(connected=False)
    library = stage.modules.pop("libcuda.so.1")
    for proc in stage.procs.values():
        stage.become(proc, "yield", module="libc.so.6", called_from=SYNCHRONIZE)
    stage.run(5)
    views = stage.job.members.ranks.values()
    assert all(process.code for process in views)
    stage.modules["libcuda.so.1"] = library
    stage.run(5)
    assert all(process.code.drives_device for process in views)


def test_device_wait_yielding__steps_that_are_in_step_with_the_passes_are_no_circle_of_waits() -> (
    None
):
    """Ranks that yield until their devices are done, each found there for many passes, then at work for many."""
    stage = Stage(connected=False)
    for turn in range(60):
        for proc in stage.procs.values():
            if turn % 2:
                stage.become(proc, "yield", module="libc.so.6", called_from=())
            else:
                stage.become(proc, "run", module="python3.11", called_from=("python3.11+4",))
        stage.run(8)
    assert faults(stage) == []
