"""Bounds on the objects of tenants that are kept: one for all, and one for each namespace. Pure.

The API server limits the size of objects but not their number, so one account could fill every agent and
controller.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts the kept bytes of each object. Not thread-safe: used under the owner's lock."""

    def __init__(self, most_bytes: int, most_of_one_bytes: int) -> None:
        """`most_bytes`: of all namespaces; `most_of_one_bytes`: of one."""
        self._most_bytes, self._most_of_one_bytes = most_bytes, most_of_one_bytes
        self._kept: dict[str, tuple[str, int]] = {}
        self._by_namespace: Counter[str] = Counter()
        self.kept_bytes = 0
        """Sum of all kept bytes."""

    def take(self, uid: str, namespace: str, size_bytes: int) -> bool:
        """True if an object may be kept; replaces what was counted for its uid before."""
        self.drop(uid)
        of_one = self._by_namespace[namespace] + size_bytes
        if of_one > self._most_of_one_bytes or self.kept_bytes + size_bytes > self._most_bytes:
            return False
        self._kept[uid] = namespace, size_bytes
        self._by_namespace[namespace] = of_one
        self.kept_bytes += size_bytes
        return True

    def drop(self, uid: str) -> None:
        """Subtract an object that is no longer kept."""
        namespace, size_bytes = self._kept.pop(uid, ("", 0))
        self._by_namespace[namespace] -= size_bytes
        if self._by_namespace[namespace] <= 0:
            del self._by_namespace[namespace]
        self.kept_bytes -= size_bytes
