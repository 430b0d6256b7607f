"""How much is kept of the objects that tenants write: a bound for all, and a share of it for each namespace. Pure.

The API server limits each object and not their number, so whoever may create one could fill every agent and controller.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts the bytes that are kept of each object. Used under the lock of whoever keeps them."""

    def __init__(self, most_bytes: int, most_of_one_bytes: int) -> None:
        """`most_bytes`: of all namespaces; `most_of_one_bytes`: of one."""
        self._most_bytes, self._most_of_one_bytes = most_bytes, most_of_one_bytes
        self._kept: dict[str, tuple[str, int]] = {}
        self._by_namespace: Counter[str] = Counter()
        self.kept_bytes = 0
        """Of all that is kept."""

    def take(self, uid: str, namespace: str, size_bytes: int) -> bool:
        """Whether an object may be kept; what was counted for its uid before is no longer."""
        self.drop(uid)
        of_one = self._by_namespace[namespace] + size_bytes
        if of_one > self._most_of_one_bytes or self.kept_bytes + size_bytes > self._most_bytes:
            return False
        self._kept[uid] = namespace, size_bytes
        self._by_namespace[namespace] = of_one
        self.kept_bytes += size_bytes
        return True

    def drop(self, uid: str) -> None:
        """An object is no longer kept."""
        namespace, size_bytes = self._kept.pop(uid, ("", 0))
        self._by_namespace[namespace] -= size_bytes
        if self._by_namespace[namespace] <= 0:
            del self._by_namespace[namespace]
        self.kept_bytes -= size_bytes
