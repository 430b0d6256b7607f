"""Input of every part, and how it stores its facts."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]


class NotPossible(Exception):
    """A part, or a step of it, cannot be done on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Output folder, folder of the device files, and whether this is the short self-test."""

    folder: Path
    devices: Path
    quick: bool

    def to_json(self) -> str:
        return json.dumps([str(self.folder), str(self.devices), self.quick])

    @classmethod
    def from_json(cls, text: str) -> Self:
        folder, devices, quick = json.loads(text)
        return cls(Path(folder), Path(devices), bool(quick))


@dataclass(slots=True)
class Notes:
    """The facts of one part. Each is written at once, because the process may hang in the next call."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def add(self, name: str, value: object) -> None:
        self.facts[name] = value
        self.write("unfinished", "")

    def write(self, state: str, why: str) -> None:
        """`state` is one of: done, unfinished, not possible here."""
        seconds = round(time.monotonic() - self.began_s, 2)
        table = {"state": state, "why": why, "seconds": seconds, "facts": self.facts}
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(table, indent=1) + "\n")
        fresh.replace(self.path)
