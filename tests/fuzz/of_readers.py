"""What a confined reader that was taken over may send, and what it may be asked: frames, and what is in them."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.agent.reader.program import decode, encode, parts_of
from kcover_ebpf.agent.reader.questions import Questions
from kcover_ebpf.api.json_values import WrongValue
from kcover_ebpf.collectives.ras import RasReport
from kcover_ebpf.confined.frames import FrameError, FrameReader, pack
from kcover_ebpf.facts.host import CodeSeen, ThreadReading
from kcover_ebpf.facts.recorders import RankRecord
from kcover_ebpf.logs.wanted_logs import LogTurn
from tests.fuzz.target import Target, of_json

_ANSWERS: tuple[type[Any], ...] = (LogTurn, ThreadReading, CodeSeen, RankRecord, RasReport)
_STREAM_BYTES = 64 << 10
_BLOCK_BYTES = 1000


def _frames(data: bytes) -> None:
    """In blocks as a socket gives them; what comes out can be sent again."""
    reader = FrameReader()
    for start in range(0, len(data), _BLOCK_BYTES):
        for value in reader.feed(data[start : start + _BLOCK_BYTES]):
            assert list(FrameReader().feed(pack(value))) == [value]


def _answer(value: Any) -> None:
    """As each kind of answer; what is taken for one can be written again, and is the same."""
    for kind in _ANSWERS:
        try:
            found = decode(kind, value)
        except WrongValue:
            continue
        assert decode(kind, encode(found)) == found


def _talk(data: bytes) -> None:
    """As answers to three questions: each receives one answer at most, and a short text."""
    questions = Questions()
    waiting = [questions.add()[1] for _ in range(3)]
    try:
        reader = FrameReader()
        for start in range(0, len(data), _BLOCK_BYTES):
            for value in reader.feed(data[start : start + _BLOCK_BYTES]):
                questions.take(value)
    finally:
        questions.end()
        for question in waiting:
            assert question.answers.qsize() == 1
            assert len(question.at) <= 256


def _asked(data: bytes) -> None:
    """By the agent, to a reader."""
    for value in FrameReader().feed(data):
        number, name, arguments, count = parts_of(value)
        question = {"id": number, "do": name, "with": arguments, "descriptors": count}
        assert list(FrameReader().feed(pack(question)))


TARGETS = (
    Target("reader_frames", _frames, _STREAM_BYTES, (FrameError,)),
    Target("reader_talk", _talk, _STREAM_BYTES, (FrameError,)),
    Target("reader_questions", _asked, _STREAM_BYTES, (FrameError,)),
    Target("reader_answers", of_json(_answer), _STREAM_BYTES, is_json=True),
)
