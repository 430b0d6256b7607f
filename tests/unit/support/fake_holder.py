"""In the place of the process that lets go of what is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class FakeHolder:
    """Remembers what it was given."""

    held: dict[str, int] = field(default_factory=dict)
    """Incident to the number of processes."""

    def hold(self, incident: str, pinned: Mapping[int, int]) -> None:
        """Count them."""
        self.held[incident] = self.held.get(incident, 0) + len(pinned)

    def tend(self) -> None:
        pass

    def drop(self, incident: str) -> None:
        """Forget them."""
        self.held.pop(incident, None)
