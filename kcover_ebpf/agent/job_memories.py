"""What the agent remembers of each job of its node, in its state folder: it survives agent, pods and restarts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from kcover_ebpf.agent.memory_codec import memory_of, words_of
from kcover_ebpf.agent.state_file import write_text
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.tunables.agent import MEMORIES_KEPT, MEMORY_SAVED_S

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 4 << 20


class JobMemories:
    """Used by the thread of the loop alone."""

    def __init__(self, file: Path) -> None:
        """Read what an earlier agent wrote; an unreadable file counts as empty."""
        self._file = file
        self._memories = _load(file)
        self._saved_s = 0.0
        self._paced: set[str] = set()
        """Jobs whose step times were known at the last save."""

    def of(self, gang: Gang) -> JobMemory:
        """The memory of a job, which its watch writes to; with too many jobs the oldest are forgotten."""
        key = f"{gang.namespace}/{gang.name}"
        memory = self._memories.pop(key, None) or JobMemory()
        self._memories[key] = memory
        while len(self._memories) > MEMORIES_KEPT:
            del self._memories[next(iter(self._memories))]
        return memory

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
