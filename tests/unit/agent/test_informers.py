"""What an agent does about an Incident that it hears of."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from kcover_ebpf.agent.informers import Informers
from kcover_ebpf.kube.reflector import Change, Event


@pytest.mark.parametrize(
    ("phases", "asked"),
    [
        (["Open"], 1),
        (["Open", "Open"], 1),
        (["Open", "Decided", "ShuttingDown", "Recovering", "Recovering"], 2),
        (["Observed"], 0),
        (["Open", "Observed", "Open"], 2),
    ],
    ids=["open", "open still", "restarted", "observed", "open again"],
)
def test_informers__reports_are_confirmed_once_when_an_incident_asks_for_them(
    phases: list[str], asked: int
) -> None:
    """A stopped rank is proven by what nodes say whose ranks are silent, which would else be heard every 30 s."""
    confirmed: list[str] = []
    informers = Informers(Mock(), "n0", Mock(), Mock(), Mock(), confirmed.append)
    for phase in phases:
        incident: dict[str, Any] = {
            "metadata": {"namespace": "team", "name": "j-1", "uid": "u"},
            "status": {"phase": phase},
        }
        informers.on_incident(Event(Change.SET, incident))
    assert confirmed == ["team"] * asked
