"""Identity of a gang: its namespace and the labels that all its pods carry. Pure.

Agents name their reports by it, orders and incidents contain it, and the controller uses it as its key. Two gangs
with the same labels in one namespace are one gang, whatever name and kind their pods state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GangId:
    """Identity of a gang: what all its pods have in common."""

    namespace: str
    selector: tuple[tuple[str, str], ...]
    """Sorted (label, value) pairs; `job_kinds.selects` evaluates them."""

    @classmethod
    def of(cls, namespace: str, labels: Mapping[str, str]) -> Self:
        """Identity of the gang whose pods carry these labels."""
        return cls(namespace, tuple(sorted(labels.items())))

    @property
    def labels(self) -> dict[str, str]:
        """The selector as a mapping from label to value."""
        return dict(self.selector)

    def __str__(self) -> str:
        """Readable form for messages: namespace and selector."""
        return f"{self.namespace}/{'/'.join(value for _, value in self.selector)}"
