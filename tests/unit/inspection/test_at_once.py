"""Calls that are made at once: what none of them answered, and what is our own fault."""

from __future__ import annotations

import threading

import pytest

from kcover_ebpf.inspection.at_once import at_once


def test_at_once__a_place_without_an_answer_costs_no_other() -> None:
    released = threading.Event()

    def ask(place: int) -> int:
        if place == 1:
            released.wait(60)
        return place

    assert at_once(ask, [0, 1, 2], 0.2) == [0, None, 2]
    released.set()


def test_at_once__a_call_that_crashes_is_not_a_place_without_an_answer() -> None:
    def ask(place: int) -> int:
        return 1 // place

    with pytest.raises(ZeroDivisionError):
        at_once(ask, [1, 0], 10.0)
