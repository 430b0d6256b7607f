"""Incidents: what a tenant adds to one costs that one, and what a namespace has costs that namespace."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.incident import (
    FINALIZER,
)
from kcover_ebpf.controller import incident_bounds
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import OverBound
from kcover_ebpf.kube.reflector import Change, Event
from tests.unit.support.incident_objects import incident


class Cluster:
    def __init__(self) -> None:
        self.over: list[OverBound] = []
        self.store = ObjectCache(lambda _: None, over=self.over.append, wall=lambda: 1.0)

    def write(self, raw: dict[str, Any], change: Change = Change.SET) -> None:
        self.store.on_incident(Event(change, raw))

    @property
    def kept(self) -> set[str]:
        return {name for _, name in self.store.incidents}


def test_incident_bounds__finalizers_without_end_cost_the_incident_that_has_them() -> None:
    cluster = Cluster()
    cluster.write(incident("ns", "plain", FINALIZER, "example.org/theirs"))
    cluster.write(incident("ns", "huge", *(f"example.org/{number:0200}" for number in range(5000))))
    assert cluster.kept == {"plain"}
    (error,) = cluster.over
    assert (error.what, error.about["name"]) == ("incident", "huge")
    (gang,) = cluster.store.unreadable.values()
    assert gang.selector == (("job", "huge"),), "its job is left alone"


def test_incident_bounds__one_namespace_takes_no_room_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incident_bounds, "_MOST_OF_ONE_BYTES", 50_000)
    cluster = Cluster()
    for number in range(100):
        cluster.write(incident("many", f"i{number}"))
    cluster.write(incident("other", "mine"))
    of_many = cluster.kept - {"mine"}
    assert 5 < len(of_many) < 50
    assert "mine" in cluster.kept
    assert {error.what for error in cluster.over} == {"incidents"}
    # room is made by those that go
    cluster.write(incident("many", "i0"), Change.GONE)
    cluster.write(incident("many", "i99"))
    assert "i99" in cluster.kept
