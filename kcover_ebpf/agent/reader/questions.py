"""Questions that a reader was asked and has not answered. Thread-safe.

A reader may be compromised: whatever it answers, one question keeps at most one answer and one short text, and an
answer to an unknown question is dropped.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from kcover_ebpf.dataclass import dataclass

_MOST_TEXT = 256


@dataclass(slots=True)
class Question:
    """One question that waits for its answer."""

    answers: queue.SimpleQueue[Mapping[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    """Receives one item: the answer, or None if the reader has ended."""
    at: str = ""
    """What the reader last reported to be working on."""


class Questions:
    """Open questions of one reader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, Question] = {}
        self._given_up: set[int] = set()

    def add(self) -> tuple[int, Question]:
        """Add a question; returns it with its number."""
        number, question = next(self._numbers), Question()
        with self._lock:
            self._open[number] = question
        return number, question

    def drop(self, number: int) -> None:
        """Stop waiting for these answers; unknown numbers are ignored."""
        with self._lock:
            self._open.pop(number, None)

    def give_up(self, number: int) -> int:
        """As `drop`, for questions not answered in time; returns how many of these are still unanswered."""
        with self._lock:
            self._open.pop(number, None)
            self._given_up.add(number)
            return len(self._given_up)

    def take(self, answer: Mapping[str, Any]) -> None:
        """Take a message of the reader: its position (`at`), or an answer."""
        number = answer.get("id")
        if not isinstance(number, int):
            return
        with self._lock:
            if "at" in answer:
                question = self._open.get(number)
                if question is not None:
                    question.at = text_of(answer["at"])
                return
            self._given_up.discard(number)
            question = self._open.pop(number, None)
        if question is not None:
            question.answers.put(answer)

    def end(self) -> None:
        """The reader has ended: release everything that waits for an answer."""
        with self._lock:
            waiting, self._open = list(self._open.values()), {}
            self._given_up.clear()
        for question in waiting:
            question.answers.put(None)


def text_of(value: object) -> str:
    """The beginning of a text that a reader sent; empty for anything else."""
    return value[:_MOST_TEXT] if isinstance(value, str) else ""
