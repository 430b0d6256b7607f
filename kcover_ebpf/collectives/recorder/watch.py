"""Requests the flight recordings of a stalled job's ranks, outside the sensor's loop.

Each rank is asked once per stall. Workers do what is slow: they open files that the job chose, and parse dumps. The
loop takes their results at each pass.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial

from kcover_ebpf.collectives.recorder import dump_request
from kcover_ebpf.collectives.recorder.dump_request import (
    Mark,
    RankRecorder,
    RecordersHere,
    RecorderSource,
    RequestError,
)
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.recorders import RankRecord, RecordersSeen, UnreadRecorder
from kcover_ebpf.host import procfs
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.collectives import RECORDER_ANSWER_S, RECORDER_PAUSE_S, RECORDER_RETRY_S

_UNREADABLE = "reading its files hangs"


@dataclass(slots=True)
class _Question:
    recorder: RankRecorder
    asked: bool = False
    mark: Mark = None
    """Mark of the file that was read last or existed before."""
    reason: str = "it has not answered"
    next_s: float = 0.0
    answer: RankRecord | None = None
    is_over: bool = False


_Reply = tuple[Mark, RankRecord | str] | RequestError


class RecorderWatch:
    """The recorders of one job. `tick` never waits."""

    def __init__(self, source: RecorderSource | None = None) -> None:
        """`source`: requests and reads the dumps; None: this process does."""
        self._source = source or RecordersHere()
        self._readers: Readers[Pid, _Reply] | None = None
        self._questions: dict[Pid, _Question] = {}
        self._asked_ns = 0
        self._asked_s: float | None = None
        self._is_open = False
        self._published: object = None

    def tick(self, stalled: bool, ranks: Mapping[Pid, ProcessHistory]) -> list[RecordersSeen]:
        """All that is known of this stall, each time there is more since the last call; else empty."""
        now_s = time.monotonic()
        if not stalled:
            self.close()
            return []
        if not self._is_open:
            if self._asked_s is not None and now_s - self._asked_s < RECORDER_PAUSE_S:
                return []
            self._open(ranks, now_s)
        if self._readers is None:
            return []
        self._take(self._readers)
        is_late = self._asked_s is not None and now_s - self._asked_s > RECORDER_ANSWER_S
        for question in self._questions.values():
            question.is_over |= is_late
            if not question.is_over and now_s >= question.next_s:
                _step(self._source, self._readers, question, now_s)
        return self._news(self._readers.stuck())

    @property
    def is_asking(self) -> bool:
        """True while an answer may still arrive, for at most `RECORDER_ANSWER_S`."""
        return not all(question.is_over for question in self._questions.values())

    def close(self) -> None:
        """Forget the stall; a dump that is still being read is dropped."""
        if self._readers is not None:
            for pid in self._questions:
                self._readers.forget(pid)
            self._readers.close()
        self._readers, self._questions, self._is_open = None, {}, False

    def _open(self, ranks: Mapping[Pid, ProcessHistory], now_s: float) -> None:
        self._is_open, self._published = True, None
        self._asked_ns = procfs.boottime_ns()
        for pid, process in ranks.items():
            if process.seen is None or process.membership is None:
                continue
            recorder = dump_request.recorder_of(
                pid, process.membership.rank, process.seen.start_ns, process.seen.rank_environ
            )
            if recorder is not None:
                self._questions[pid] = _Question(recorder)
                self._asked_s = now_s
        if self._questions:
            self._readers = Readers("kcover-recorder")

    def _take(self, readers: Readers[Pid, _Reply]) -> None:
        for pid, reply in readers.take((), 0.0):
            question = self._questions.get(pid)
            if question is None or question.is_over:
                continue
            if reply is None or isinstance(reply, RequestError):
                question.reason, question.is_over = str(reply or "it could not be read"), True
                continue
            question.asked = True
            question.mark, answer = reply
            if isinstance(answer, str):
                question.reason = answer or question.reason
            else:
                question.answer, question.is_over = answer, True

    def _news(self, stuck: Collection[Pid]) -> list[RecordersSeen]:
        records = tuple(
            question.answer for question in self._questions.values() if question.answer is not None
        )
        unread = tuple(
            UnreadRecorder(
                pid, question.recorder.rank, _UNREADABLE if pid in stuck else question.reason
            )
            for pid, question in self._questions.items()
            if question.is_over and question.answer is None
        )
        if not (records or unread) or (records, unread) == self._published:
            return []
        self._published = records, unread
        return [RecordersSeen(self._asked_ns, records, unread)]


def _step(
    source: RecorderSource, readers: Readers[Pid, _Reply], question: _Question, now_s: float
) -> None:
    call = (
        partial(source.fetch, question.recorder, question.mark)
        if question.asked
        else partial(_request, source, question.recorder)
    )
    if readers.ask(question.recorder.pid, partial(_reply, call)):
        question.next_s = now_s + RECORDER_RETRY_S


def _request(source: RecorderSource, recorder: RankRecorder) -> tuple[Mark, RankRecord | str]:
    return source.request(recorder), ""


def _reply(call: partial[tuple[Mark, RankRecord | str]]) -> _Reply:
    try:
        return call()
    except RequestError as error:
        return error
