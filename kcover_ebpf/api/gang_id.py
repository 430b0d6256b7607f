"""What identifies a gang: its namespace and the labels that all its pods carry. Pure.

Agents name their reports by it, orders and incidents carry it, and the controller keeps everything by it. Two gangs
with the same labels in one namespace are one, whatever their pods say of their name and kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GangId:
    """A gang by what all its pods carry."""

    namespace: str
    selector: tuple[tuple[str, str], ...]
    """Sorted pairs of label and value; `job_kinds.selects` understands them."""

    @classmethod
    def of(cls, namespace: str, labels: Mapping[str, str]) -> Self:
        """That of the gang whose pods carry these labels."""
        return cls(namespace, tuple(sorted(labels.items())))

    @property
    def labels(self) -> dict[str, str]:
        """The selector as labels."""
        return dict(self.selector)

    def __str__(self) -> str:
        """For people."""
        return f"{self.namespace}/{'/'.join(value for _, value in self.selector)}"
