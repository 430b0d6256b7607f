"""Writes of a restart step to the API server."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.errors import ApiError, NotFound, Unreachable
from kcover_ebpf.recovery.restart.context import Evict


class Server:
    """Answers evictions with these errors, by name of the pod."""

    def __init__(self, errors: dict[str, ApiError]) -> None:
        self.errors = errors
        self.evicted: list[str] = []

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = body["metadata"]["name"]
        if name in self.errors:
            raise self.errors[name]
        self.evicted.append(name)
        return {}


def evict(server: Server) -> None:
    writer = ApiWriter(server, lambda *_: None, lambda: True)  # type: ignore[arg-type]
    pods = tuple((name, f"u-{name}") for name in ("a", "b", "c"))
    writer.perform("ns", Evict(pods, 1), "ns/i")


def test_api_writer__a_disruption_budget_refuses_one_eviction_and_not_the_others() -> None:
    budget = Unreachable("POST .../a/eviction: 429 it would violate the disruption budget", 429)
    server = Server({"a": budget, "b": NotFound("404", 404)})
    with pytest.raises(ApiError, match="disruption budget") as caught:
        evict(server)
    assert caught.value.is_refusal
    assert server.evicted == ["c"]


def test_api_writer__a_server_that_is_away_refuses_nothing() -> None:
    server = Server({"b": Unreachable("503", 503)})
    with pytest.raises(Unreachable) as caught:
        evict(server)
    assert not caught.value.is_refusal
    assert server.evicted == ["a"]
