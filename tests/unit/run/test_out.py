"""What reaches a reader that is slow, does not read, or is gone; and that none of it stops a run."""

import errno
import json
import os
import threading
from collections.abc import Iterator

import pytest

from kcover_ebpf.run import out as module
from kcover_ebpf.run.out import Out, QueuedOut
from kcover_ebpf.run.sinks import JsonSink, TextSink
from tests.waiting import until

_LINE = "x" * 1023 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def queued(pipe: tuple[int, int]) -> Iterator[tuple[int, QueuedOut]]:
    reader, writer = pipe
    made = QueuedOut(writer)
    yield reader, made
    made.close()


def take(reader: int, size: int) -> bytes:
    """That many bytes, or fewer if no more arrive."""
    data = b""
    while len(data) < size:
        data += os.read(reader, size - len(data))
    return data


@pytest.mark.parametrize("kind", [Out, QueuedOut])
def test_out__a_full_pipe_that_does_not_block_is_waited_for(
    kind: type[Out], pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    made, text = kind(writer), "y" * 200_000 + "\n"
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(take(reader, len(text) + 5)))
    thread.start()
    made.write(text)
    made.write("next\n")
    thread.join(60)
    assert received == [text.encode() + b"next\n"]
    if isinstance(made, QueuedOut):
        made.close()


def test_out__a_full_disk_costs_no_later_line(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    made = Out(writer)
    sink = TextSink(made, lambda: 0.0)
    room = [5]
    write = os.write

    def to_a_full_disk(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(descriptor, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", to_a_full_disk)
    sink.on_blind("one")
    sink.on_blind("two")
    room[0] = 1000
    sink.on_blind("three")
    first, second, third, *rest = os.read(reader, 1000).decode().splitlines()
    assert first == "[kcov"
    assert second.endswith("] 2 messages before this one are missing: they could not be written")
    assert third.endswith("] blind: three")
    assert rest == []


@pytest.mark.parametrize("gone", [errno.EPIPE, errno.EIO])
def test_out__is_silent_once_its_reader_is_gone(
    gone: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bytes] = []

    def to_no_reader(_descriptor: int, data: bytes) -> int:
        calls.append(data)
        raise OSError(gone, "gone")

    monkeypatch.setattr(os, "write", to_no_reader)
    made = Out(pipe[1])
    made.write("one\n")
    made.write("two\n")
    assert calls == [b"one\n"]


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set while the reader reads; until then every write waits for it."""
    reads, write = threading.Event(), os.write

    def once_read(descriptor: int, data: bytes) -> int:
        reads.wait()
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", once_read)
    yield reads
    reads.set()


def test_queued_out__a_reader_that_does_not_read_stops_nothing(
    queued: tuple[int, QueuedOut], reading: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OUT_FLUSH_S", 0.1)
    reader, made = queued
    made.write(_LINE)
    made.close()
    assert made._queue
    reading.set()
    assert os.read(reader, 2000) == _LINE.encode()


def test_queued_out__what_a_reader_missed_is_counted_before_the_next_line(
    queued: tuple[int, QueuedOut], reading: threading.Event
) -> None:
    reader, made = queued
    JsonSink(made, lambda: 0.0)
    kept = module._QUEUE_BYTES // len(_LINE)
    for _ in range(kept + 10):
        made.write(_LINE)
    reading.set()
    assert take(reader, kept * len(_LINE)) == _LINE.encode() * kept
    until(lambda: not made._queue)
    made.write("next\n")
    notice, line = os.read(reader, 1000).splitlines()
    event = json.loads(notice)
    assert (event["event"], event["count"]) == ("dropped", 10)
    assert line == b"next"


def test_queued_out__close_writes_what_is_queued(queued: tuple[int, QueuedOut]) -> None:
    reader, made = queued
    for number in range(100):
        made.write(f"{number}\n")
    made.close()
    assert os.read(reader, 1000).decode().split() == [str(number) for number in range(100)]


def test_queued_out__a_reader_that_went_away_costs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUT_FLUSH_S", 60.0)
    reader, writer = os.pipe()
    os.close(reader)
    made = QueuedOut(writer)
    for _ in range(100):
        made.write(_LINE)
    made.close()
    assert not made._queue
    os.close(writer)
