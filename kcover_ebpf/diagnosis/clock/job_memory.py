"""What is remembered of a job across restarts of the agent, and of the job itself. Pure.

The silences that ended by themselves, and the places where its ranks waited while they were healthy (module and offset;
a rebuilt library has other offsets, so that its waits are learned anew).
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

    def to_words(self) -> dict[str, object]:
        """The record as JSON values: a few KB."""
        kept = self.waits.stacks[-_MOST_WAITS:]
        return {**to_words(self.silences), "waits": [list(stack[:_MOST_FRAMES]) for stack in kept]}


def memory_of(words: object) -> JobMemory:
    """The record in JSON values; what does not fit is passed over, so that a damaged one teaches nothing."""
    if not isinstance(words, Mapping):
        return JobMemory()
    memory = JobMemory(of_words(words))
    waits = words.get("waits")
    for stack in waits[:_MOST_WAITS] if isinstance(waits, list) else ():
        if isinstance(stack, list) and all(isinstance(word, str) for word in stack):
            memory.waits.learn(tuple(word[:_MOST_WORD] for word in stack[:_MOST_FRAMES]))
    return memory
