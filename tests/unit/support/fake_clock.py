"""A clock that shows what a test sets."""

from dataclasses import dataclass


@dataclass
class FakeClock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s
