"""Which part of the agent is dead, or makes no progress."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from kcover_ebpf.agent import health
from kcover_ebpf.agent.health import Part


class FakeWork:
    """What a thread of the agent runs, as far as its health is concerned."""

    turn_s = 0.0

    def __init__(self) -> None:
        self._closed = threading.Event()

    def run(self) -> None:
        assert self._closed.wait(30.0), "never closed"

    def close(self) -> None:
        self._closed.set()


PARTS = {
    "all is well": (Part("orders", lambda: True, lambda: 41.0, 60.0), ""),
    "dead": (Part("orders", lambda: False, lambda: 100.0, 60.0), "orders ended"),
    "making no progress": (
        Part("orders", lambda: True, lambda: 39.0, 60.0),
        "orders: no iteration for 60 s",
    ),
    "may wait": (Part("watch", lambda: True), ""),
}


@pytest.mark.parametrize(("part", "said"), PARTS.values(), ids=PARTS)
def test_wrong__one_part(part: Part, said: str) -> None:
    assert health.wrong([part], lambda: 100.0) == said


def test_wrong__all_that_is_wrong_is_said() -> None:
    parts = [PARTS["dead"][0], PARTS["all is well"][0], PARTS["making no progress"][0]]
    assert health.wrong(parts, lambda: 100.0) == "orders ended; orders: no iteration for 60 s"


def test_wrong__every_thread_of_the_agent_is_a_part() -> None:
    """A thread that is never asked about could end in silence."""
    from kcover_ebpf.agent.main import AgentOptions, _Agent

    with contextlib.ExitStack() as stack:
        agent: Any = _Agent(AgentOptions("n", "ns", None), stack)  # type: ignore[arg-type]
        agent._executor, agent._reporter = FakeWork(), FakeWork()
        agent._order_thread = agent._start(agent._executor)
        agent._report_thread = agent._start(agent._reporter)
        inspector = FakeWork()
        agent._inspection_thread = agent._start(inspector)
        agent._informers = type("Watches", (), {"is_alive": True})()
        assert health.wrong(agent._parts(), lambda: 0.0) == ""
        agent._informers.is_alive = False
        for work in (agent._executor, agent._reporter, inspector):
            work.close()
        for thread in (agent._order_thread, agent._report_thread, agent._inspection_thread):
            thread.join(10.0)
        said = health.wrong(agent._parts(), lambda: 0.0)
    assert said == "orders ended; reports ended; watches ended; inspection ended"
