"""What a confined reader that was taken over may send: frames, and the answers in them."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.agent.reader.form import decode, encode
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


TARGETS = (
    Target("reader_frames", _frames, _STREAM_BYTES, (FrameError,)),
    Target("reader_answers", of_json(_answer), _STREAM_BYTES, is_json=True),
)
