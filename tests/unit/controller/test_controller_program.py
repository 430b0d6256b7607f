"""The controller as a program: what /healthz says of its threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.main import Controller, ControllerOptions, collect_rarely
from kcover_ebpf.errors import Unreachable
from kcover_ebpf.kube.reflector import Reflector
from kcover_ebpf.tunables.controller import COLLECT_AFTER_OBJECTS


class FakeSilentSession:
    """A session whose API server does not answer; nothing is asked here."""

    def hurried(self, _: float) -> FakeSilentSession:
        return self

    def _no(self, *_: object) -> dict[str, Any]:
        raise Unreachable("no answer")

    get = list = create = replace = merge_patch = delete = stream = _no


PARTS: dict[str, Callable[[Controller, threading.Thread], None]] = {
    "watch": lambda program, dead: setattr(program._watches[0], "thread", dead),
    "pods": lambda program, dead: setattr(_pods(program), "thread", dead),
    "worker": lambda program, dead: program._workers.append(dead),
    "archive": lambda program, dead: setattr(program._archive, "thread", dead),
    "events": lambda program, dead: setattr(program._telemetry._events, "thread", dead),
    "lease": lambda program, dead: setattr(program._elector, "thread", dead),
}


def _pods(controller: Controller) -> Reflector:
    return next(iter(controller._gangs._shared.values())).watch


@pytest.mark.parametrize("part", PARTS)
def test_health__a_dead_thread_is_named(part: str) -> None:
    """As an unexpected error would leave it."""
    program = Controller(FakeSilentSession(), ControllerOptions("ns", "me", workers=2))  # type: ignore[arg-type]
    assert program._health() == ""
    ended = threading.Thread(target=lambda: None, name=f"the {part} thread")
    ended.start()
    ended.join()
    PARTS[part](program, ended)
    assert program._health() == f"these threads are dead: the {part} thread"
    program.stop()
    assert program._health() == "stopping"


def test_controller__one_namespace_takes_a_quarter_of_the_workers() -> None:
    program = Controller(FakeSilentSession(), ControllerOptions("ns", "me", workers=16))  # type: ignore[arg-type]
    busy = [GangId("busy", (("job", str(number)),)) for number in range(6)]
    other = GangId("other", (("job", "0"),))
    for gang in (*busy, other):
        program._queue.add(gang, 0.0)
    assert [program._queue.take() for _ in range(5)] == [*busy[:4], other]
    program.stop()


def test_controller__nodes_that_wait_for_each_other_leave_workers_for_jobs() -> None:
    program = Controller(FakeSilentSession(), ControllerOptions("ns", "me", workers=16))  # type: ignore[arg-type]
    nodes = [f"n{number}" for number in range(20)]
    gang = GangId("team", (("job", "0"),))
    for node in nodes:
        program._queue.add(node, 0.0)
    program._queue.add(gang, 0.0)
    assert [program._queue.take() for _ in range(5)] == [*nodes[:4], gang]
    program._queue.done("n0")
    assert program._queue.take() == "n4"
    program.stop()


def test_collect_rarely__garbage_is_searched_for_less_often() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_threshold() == (COLLECT_AFTER_OBJECTS, *before[1:])
    finally:
        gc.set_threshold(*before)
