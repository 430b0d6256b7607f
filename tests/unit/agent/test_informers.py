"""What an agent does about an Incident that it hears of."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from kcover_ebpf.agent.informers import Informers
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.silence_summary import SilenceSummary


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
    informers = Informers(Mock(), "n0", Mock(), Mock(), Mock(), confirmed.append, on_past=Mock())
    for phase in phases:
        incident: dict[str, Any] = {
            "metadata": {"namespace": "team", "name": "j-1", "uid": "u"},
            "status": {"phase": phase},
        }
        informers.on_incident(Event(Change.SET, incident))
    assert confirmed == ["team"] * asked


def test_informers__what_an_incident_says_of_a_job_is_heard_whatever_its_order_is() -> None:
    heard: list[tuple[GangId, SilenceSummary]] = []
    executor = Mock()
    informers = Informers(
        Mock(), "n0", Mock(), executor, Mock(), Mock(), on_past=lambda *past: heard.append(past)
    )
    good: dict[str, Any] = {"observedS": 3600, "count": 1, "longestS": 70, "stepS": 4.5}
    bad: Any = ({"observedS": "long"}, [], {"places": [{"place": 1}]})
    for silences in (good, *bad):
        incident = {
            "metadata": {"namespace": "team", "name": "j-1", "uid": "u"},
            "spec": {"selector": {"job": "a"}},
            "status": {"phase": "Recovering", "silences": silences},
        }
        informers.on_incident(Event(Change.SET, incident))
    assert executor.hear.call_count == 4
    gang_id = GangId.of("team", {"job": "a"})
    assert heard == [(gang_id, SilenceSummary(3600.0, 1, 70.0, step_s=4.5))]
