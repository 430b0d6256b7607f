"""What the agent remembers of each job of its node, in its state folder: it survives agent, pods and restarts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from kcover_ebpf.agent.state_file import write_text
from kcover_ebpf.api.codec import Codec, Omit
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.diagnosis.clock.silences import MOST_PLACE, Silence, Silences, bounded_s
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.tunables.agent import MEMORIES_KEPT, MEMORY_SAVED_S
from kcover_ebpf.tunables.sampling import SILENCES_KEPT

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 4 << 20
_MOST_WAITS = 24
_MOST_FRAMES = 32
_MOST_WORD = 128


class JobMemories:
    """Used by the thread of the loop alone, except `hear`."""

    def __init__(self, file: Path) -> None:
        """Read what an earlier agent wrote; an unreadable file counts as empty."""
        self._file = file
        self._memories = _load(file)
        self._heard: dict[GangId, SilenceSummary] = {}
        """What incidents say of jobs, which may come to this node; the last heard is last."""
        self._saved_s = 0.0
        self._paced: set[str] = set()
        """Jobs whose step times were known at the last save."""

    def of(self, gang: Gang) -> JobMemory:
        """The memory of a job, which its watch writes to; with too many jobs the oldest are forgotten.

        A job that never trained here continues with what its incident says of other nodes.
        """
        key = f"{gang.namespace}/{gang.name}"
        memory = self._memories.pop(key, None) or JobMemory()
        past = self._heard.get(gang.id)
        if memory.is_empty and past is not None:
            memory.inherit(past)
        self._memories[key] = memory
        while len(self._memories) > MEMORIES_KEPT:
            del self._memories[next(iter(self._memories))]
        return memory

    def hear(self, gang_id: GangId, silences: SilenceSummary) -> None:
        """Keep what an incident says of a job; called by one thread, which need not be the loop's."""
        self._heard.pop(gang_id, None)
        self._heard[gang_id] = silences
        while len(self._heard) > MEMORIES_KEPT:
            del self._heard[next(iter(self._heard))]

    def save(self, now_s: float, *, at_once: bool = False) -> None:
        """Save from time to time; `now_s`: seconds of any steady clock. A full disk costs the memory alone.

        Saves immediately once the step times of another job are known: without them the successor of a killed agent
        would take seconds longer to report a stall.
        """
        paced = {key for key, memory in self._memories.items() if memory.step_s}
        is_due = now_s - self._saved_s >= MEMORY_SAVED_S or paced - self._paced
        if not at_once and not is_due:
            return
        self._saved_s, self._paced = now_s, paced
        words = {key: words_of(memory) for key, memory in self._memories.items()}
        try:
            write_text(self._file, json.dumps(words))
        except OSError as error:
            _LOG.warning("cannot save the memory of jobs: %s", error.strerror)


def _load(file: Path) -> dict[str, JobMemory]:
    try:
        with file.open("rb") as opened:
            words = json.loads(opened.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(words, dict):
        return {}
    return {str(key): memory_of(value) for key, value in list(words.items())[-MEMORIES_KEPT:]}


@dataclass(frozen=True, slots=True)
class _Record:
    """One memory in the file: a few KB."""

    observed_s: float = 0.0
    silences: tuple[tuple[str, float, float], ...] = ()
    """Place, length and the training observed before, as `Silence` has them."""
    built_waits: tuple[tuple[str, ...], ...] = ()
    """Their words carry build ids; an older agent wrote others without, as `waits`."""
    start_s: float = 0.0
    step_s: float = 0.0


_FILE = Codec(omit=Omit.NOTHING)


def words_of(memory: JobMemory) -> dict[str, object]:
    """The record as JSON values."""
    kept = memory.silences.kept
    record = _Record(
        round(memory.silences.observed_s),
        tuple((one.place, round(one.length_s, 1), round(one.at_s)) for one in kept),
        tuple(stack[:_MOST_FRAMES] for stack in memory.waits.stacks[-_MOST_WAITS:]),
        round(memory.start_s, 2),
        round(memory.step_s, 2),
    )
    return _FILE.encode(record)


def memory_of(words: object) -> JobMemory:
    """The record in JSON values; a damaged one teaches nothing."""
    try:
        record = _FILE.decode(_Record, words)
    except ObjectError:
        return JobMemory()
    kept = [
        Silence(place[:MOST_PLACE], length_s, at_s)
        for place, length_s, at_s in record.silences
        if bounded_s(length_s)
    ]
    memory = JobMemory(
        Silences(max(0.0, record.observed_s), kept[: 4 * SILENCES_KEPT]),
        start_s=bounded_s(record.start_s),
        step_s=bounded_s(record.step_s),
    )
    for stack in record.built_waits[:_MOST_WAITS]:
        memory.waits.learn(tuple(word[:_MOST_WORD] for word in stack[:_MOST_FRAMES]))
    return memory
