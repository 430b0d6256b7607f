"""Lines on stderr. What repeats is said once, and again when it changes or a minute has passed."""

from __future__ import annotations

import sys
import time
from enum import IntEnum

_AGAIN_S = 60.0


class Level(IntEnum):
    """How much is said; each includes the ones before it."""

    ERROR = 0
    WARNING = 1
    INFO = 2
    DEBUG = 3


class Log:
    """Thread-safe: a line is one write."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._said: dict[str, tuple[str, float]] = {}

    def say(self, text: str, level: Level = Level.INFO) -> None:
        """One line."""
        if level <= self._level:
            clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            sys.stderr.write(f"{clock} {level.name.lower()} {' '.join(text.split())}\n")
            sys.stderr.flush()

    def repeat(self, about: str, text: str, level: Level = Level.WARNING) -> None:
        """A line about something that may go wrong many times a second."""
        before = self._said.get(about)
        now_s = time.monotonic()
        if before is None or before[0] != text or now_s - before[1] > _AGAIN_S:
            self._said[about] = text, now_s
            self.say(text, level)
