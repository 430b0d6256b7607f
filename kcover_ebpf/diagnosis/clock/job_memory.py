"""What is remembered of a job across restarts of the agent, and of the job itself. Pure.

The silences that ended by themselves, how long its start and its steps are silent, and the places where its ranks
waited while they were healthy (module and offset; a rebuilt library has other offsets, so that its waits are learned
anew).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.silences import Silences, of_words, to_words
from kcover_ebpf.diagnosis.history.stacks import KnownWaits

_MOST_WAITS = 24
_MOST_FRAMES = 32
_MOST_WORD = 128


@dataclass(slots=True)
class JobMemory:
    """The record of one job, by its name: each of its incarnations continues it."""

    silences: Silences = field(default_factory=Silences)
    waits: KnownWaits = field(default_factory=KnownWaits)
    start_s: float = 0.0
    """The longest silence of a rank before the job trained, in the last start; 0 before the first."""
    step_s: float = 0.0
    """The longest silence of a healthy rank while the job trained, of those that its pace remembers; 0 before any."""

    def to_words(self) -> dict[str, object]:
        """The record as JSON values: a few KB."""
        kept = self.waits.stacks[-_MOST_WAITS:]
        return {
            **to_words(self.silences),
            "waits": [list(stack[:_MOST_FRAMES]) for stack in kept],
            "startS": round(self.start_s, 2),
            "stepS": round(self.step_s, 2),
        }


def memory_of(words: object) -> JobMemory:
    """The record in JSON values; what does not fit is passed over, so that a damaged one teaches nothing."""
    if not isinstance(words, Mapping):
        return JobMemory()
    memory = JobMemory(of_words(words))
    memory.start_s, memory.step_s = _seconds(words.get("startS")), _seconds(words.get("stepS"))
    waits = words.get("waits")
    for stack in waits[:_MOST_WAITS] if isinstance(waits, list) else ():
        if isinstance(stack, list) and all(isinstance(word, str) for word in stack):
            memory.waits.learn(tuple(word[:_MOST_WORD] for word in stack[:_MOST_FRAMES]))
    return memory


def _seconds(word: object) -> float:
    return float(word) if isinstance(word, int | float) and 0 <= word < 1e6 else 0.0
