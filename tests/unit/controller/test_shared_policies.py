"""Policies that are written while a worker reads them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from kcover_ebpf.api import policy_store
from kcover_ebpf.api.fault_policy import FaultPolicy, Level, NamedPolicy, policy_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.kube.reflector import Change, Event
from tests.unit.support.kept_policies import policy_object

COUNT = 3


def written(cache: ObjectCache, name: str, level: Level) -> None:
    cache.on_policy(Event(Change.SET, policy_object("ml", name, FaultPolicy(action=level))))


def test_shared_policies__a_policy_that_is_written_while_a_worker_reads_holds_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = ObjectCache(lambda _: None)
    for number in range(COUNT):
        written(cache, f"p{number}", Level.SHUTDOWN)
    is_read, is_written = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def slow_policy_of(api: Mapping[str, Any]) -> NamedPolicy:
        """The worker pauses after the first policy, until the second thread has written or waits for it."""
        found = policy_of(api)
        if threading.current_thread() is worker and not is_read.is_set():
            is_read.set()
            is_written.wait(0.2)
        return found

    def read() -> None:
        try:
            cache.policies.of("ml")
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker would have lost its pass
            errors.append(error)

    worker = threading.Thread(target=read)
    monkeypatch.setattr(policy_store, "policy_of", slow_policy_of)
    worker.start()
    assert is_read.wait(5.0)
    written(cache, "p0", Level.OBSERVE)
    is_written.set()
    worker.join(5.0)
    assert not worker.is_alive()
    assert errors == []
    actions = {policy.name: policy.policy.action for policy in cache.policies.of("ml")}
    assert actions["p0"] is Level.OBSERVE
    assert list(actions.values()).count(Level.SHUTDOWN) == COUNT - 1
