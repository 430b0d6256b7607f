"""How long an agent keeps a gang stopped when its wall clock is set meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.agent.orders.order_executor import OrderExecutor
from kcover_ebpf.agent.orders.order_journal import StopRecord
from tests.unit.support.fake_holder import FakeHolder


class FakeJournal:
    """One stop that an order with ten seconds to go left."""

    def __init__(self) -> None:
        self.stops = {"inc": StopRecord("inc", "ml/train", 1_010.0, (), ())}

    def drop_stops(self, incidents: tuple[str, ...]) -> None:
        for incident in incidents:
            self.stops.pop(incident)


@pytest.mark.parametrize(
    ("wall_s", "steady_s", "kept"),
    [
        (1_009.0, 9.0, True),
        (1_010.0, 10.0, False),
        (500.0, 14.0, True),
        (500.0, 15.0, False),
        (5_000.0, 1.0, False),
    ],
    ids=["in time", "over", "set back", "set back, and 15 s are over", "set forward"],
)
def test_expire__a_clock_that_is_set_back_keeps_nothing_stopped(
    wall_s: float, steady_s: float, kept: bool
) -> None:
    now = {"wall": 1_000.0, "steady": 0.0}
    journal: Any = FakeJournal()

    listeners: Any = SimpleNamespace(passed_over=lambda _: None)
    nothing: Any = SimpleNamespace()
    executor = OrderExecutor(
        nothing,
        nothing,
        journal,
        listeners,
        FakeHolder(),
        lambda: now["wall"],
        lambda: now["steady"],
    )
    now.update(wall=wall_s, steady=steady_s)
    executor.expire()
    assert bool(journal.stops) is kept
