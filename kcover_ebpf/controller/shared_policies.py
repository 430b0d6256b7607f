"""The FaultPolicies of the cluster, for several threads: a watch writes them, and all workers read them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from kcover_ebpf.api.fault_policy import NamedPolicy
from kcover_ebpf.api.policy_store import PolicyStore
from kcover_ebpf.errors import OverBound


class SharedPolicies:
    """A `PolicyStore` whose owner is the controller; thread-safe. Pods of an unreadable policy are only observed."""

    def __init__(
        self,
        on_bad: Callable[[str], None] = lambda _: None,
        on_over: Callable[[OverBound], None] = lambda _: None,
    ) -> None:
        """`on_bad`, `on_over`: as for `PolicyStore`; called while no other thread can read policies."""
        self._policies = PolicyStore(on_bad, on_over, observes_unread=True)
        # not the lock of the cache: policies are decoded while it is locked, and reports must not wait for that
        self._lock = threading.Lock()

    def set(self, api: Mapping[str, Any]) -> None:
        """Take a policy as the API server sends it."""
        with self._lock:
            self._policies.set(api)

    def remove(self, api: Mapping[str, Any]) -> None:
        """Remove a policy."""
        with self._lock:
            self._policies.remove(api)

    def of(self, namespace: str) -> tuple[NamedPolicy, ...]:
        """The policies in force in a namespace."""
        with self._lock:
            return self._policies.of(namespace)

    def named(self, namespace: str, name: str) -> NamedPolicy | None:
        """The policy with this name; None if it is not kept."""
        with self._lock:
            return self._policies.named(namespace, name)

    @property
    def longest_window_s(self) -> int:
        """The longest window of restart budgets of all policies; the default's if there is no policy."""
        with self._lock:
            return self._policies.longest_window_s
