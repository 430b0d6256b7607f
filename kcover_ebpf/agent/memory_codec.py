"""What is remembered of a job, as JSON values and read from them again. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.diagnosis.clock.silences import Silence, Silences
from kcover_ebpf.tunables.certainty import SILENCES_KEPT

_MOST_WAITS = 24
_MOST_FRAMES = 32
_MOST_WORD = 128


def words_of(memory: JobMemory) -> dict[str, object]:
    """The record as JSON values: a few KB."""
    kept = memory.waits.stacks[-_MOST_WAITS:]
    return {
        **_silence_words(memory.silences),
        "waits": [list(stack[:_MOST_FRAMES]) for stack in kept],
        "startS": round(memory.start_s, 2),
        "stepS": round(memory.step_s, 2),
    }


def memory_of(words: object) -> JobMemory:
    """The record in JSON values; what does not fit is passed over, so that a damaged one teaches nothing."""
    if not isinstance(words, Mapping):
        return JobMemory()
    memory = JobMemory(_silences_of(words))
    memory.start_s, memory.step_s = _seconds(words.get("startS")), _seconds(words.get("stepS"))
    waits = words.get("waits")
    for stack in waits[:_MOST_WAITS] if isinstance(waits, list) else ():
        if isinstance(stack, list) and all(isinstance(word, str) for word in stack):
            memory.waits.learn(tuple(word[:_MOST_WORD] for word in stack[:_MOST_FRAMES]))
    return memory


def _seconds(word: object) -> float:
    return float(word) if isinstance(word, int | float) and 0 <= word < 1e6 else 0.0


def _silence_words(silences: Silences) -> dict[str, object]:
    rows = [
        [silence.place, round(silence.length_s, 1), round(silence.at_s)]
        for silence in silences.kept
    ]
    return {"observedS": round(silences.observed_s), "silences": rows}


def _silences_of(words: Mapping[str, object]) -> Silences:
    observed = words.get("observedS")
    record = Silences(
        float(observed) if isinstance(observed, int | float) and observed >= 0 else 0.0
    )
    rows = words.get("silences")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str):
            length_s, at_s = row[1], row[2]
            if (
                isinstance(length_s, int | float)
                and isinstance(at_s, int | float)
                and 0 < length_s < 1e6
            ):
                record.kept.append(Silence(row[0][:64], float(length_s), float(at_s)))
    record.kept = record.kept[: 4 * SILENCES_KEPT]
    return record
