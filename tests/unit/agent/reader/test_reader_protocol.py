"""Both directions of what an agent and a confined reader say to each other, as one that was taken over might say it."""

from __future__ import annotations

import array
import os
import random
import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.agent.reader.program import Note, Server
from kcover_ebpf.agent.reader.questions import Questions
from kcover_ebpf.confined.frames import FrameError, FrameReader, pack
from tests.fuzz.table import TARGETS
from tests.fuzz.target import corpus

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=300)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
ANSWERS = st.fixed_dictionaries(
    {"id": st.integers(0, 4) | VALUES}, optional={"is": VALUES, "no": VALUES, "at": VALUES}
)


@given(st.lists(ANSWERS, max_size=20))
def test_questions__each_receives_one_answer_whatever_is_said(
    answers: list[dict[str, Any]],
) -> None:
    questions = Questions()
    waiting = dict(questions.add() for _ in range(3))
    for answer in answers:
        questions.take(answer)
    first: dict[int, dict[str, Any]] = {}
    for answer in answers:
        # True is 1, also here
        if "at" not in answer and isinstance(answer["id"], int):
            first.setdefault(answer["id"], answer)
    received = {
        number: [question.answers.get() for _ in range(question.answers.qsize())]
        for number, question in waiting.items()
    }
    expected = {number: [first[number]] if number in first else [] for number in waiting}
    assert received == expected
    assert all(len(question.at) <= 256 for question in waiting.values())


def test_questions__those_that_were_given_up_are_counted_until_they_are_answered() -> None:
    questions = Questions()
    (first, _), (second, _) = questions.add(), questions.add()
    assert [questions.give_up(first), questions.give_up(second)] == [1, 2]
    questions.take({"id": first, "at": "still there"})
    questions.take({"id": first, "is": 1})
    assert questions.give_up(second) == 1


def test_questions__the_end_of_the_reader_is_an_answer_to_all() -> None:
    questions = Questions()
    _, question = questions.add()
    questions.end()
    assert question.answers.get(timeout=1) is None


def damaged(frames: list[bytes], chance: random.Random) -> bytes:
    """A stream of these frames that is cut, repeated, swapped, or has other bytes in it."""
    stream = list(frames)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(stream))
        match chance.randrange(6):
            case 0:
                stream[at] = stream[at][: chance.randrange(len(stream[at]) + 1)]
            case 1:
                stream[at:at] = [stream[at]] * chance.choice((1, 3, 50))
            case 2:
                chance.shuffle(stream)
            case 3:
                stream[at] = stream[at][chance.randrange(len(stream[at]) + 1) :]
            case 4 if stream[at]:
                byte = chance.randrange(len(stream[at]))
                stream[at] = stream[at][:byte] + chance.randbytes(1) + stream[at][byte + 1 :]
            case _:
                stream[at] += chance.randbytes(chance.choice((1, 4, 40)))
    return b"".join(stream)


def frames_of(name: str) -> list[bytes]:
    """The whole frames in the corpus of a target."""
    found = []
    for path in corpus(TARGETS[name]):
        try:
            found += [pack(value) for value in FrameReader().feed(path.read_bytes())]
        except FrameError:
            continue
    return found


@pytest.mark.parametrize("name", ["reader_frames", "reader_talk", "reader_questions"])
def test_frames__damaged_streams_are_refused_or_understood(name: str) -> None:
    frames, target, refused = frames_of(name), TARGETS[name], 0
    for seed in range(400):
        try:
            target.parse(damaged(frames, random.Random(seed))[: target.most_bytes])
        except FrameError:
            refused += 1
    assert 0 < refused < 400


def _size(given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    note("here")
    return len(given)


def test_server__damaged_questions_end_it_or_are_answered() -> None:
    questions = [pack({"id": number, "do": "size", "with": {"a": 1}}) for number in range(5)]
    for seed in range(60):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server = Server(theirs, {"size": _size})
            ended: list[BaseException | None] = []
            thread = threading.Thread(target=_serve, args=(server, ended), daemon=True)
            thread.start()
            ours.sendall(damaged(questions, random.Random(seed)))
            ours.shutdown(socket.SHUT_WR)
            thread.join(30)
            assert len(ended) == 1
            assert ended[0] is None or isinstance(ended[0], FrameError), ended


def test_server__descriptors_reach_the_question_that_they_came_with() -> None:
    ours, theirs = socket.socketpair()
    inside, outside = os.pipe()
    with ours, theirs, os.fdopen(outside, "wb"), os.fdopen(inside, "rb"):
        # sent before any is read: the kernel hands over all of them at once
        ours.sendall(pack({"id": 1, "do": "count", "with": {}}))
        ours.sendall(pack({"id": 2, "do": "ping", "with": {}}))
        given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [inside]))]
        question = {"id": 3, "do": "count", "with": {}, "descriptors": 1}
        ours.sendmsg([pack(question)], given)
        ours.sendall(pack({"id": 4, "do": "count", "with": {}}))
        ours.shutdown(socket.SHUT_WR)
        server = Server(theirs, {"count": lambda _, descriptors, __: len(descriptors)})
        server.serve()
        ours.settimeout(30)
        frames, found = FrameReader(), dict[int, Any]()
        while len(found) < 4:
            found |= {answer["id"]: answer["is"] for answer in frames.feed(ours.recv(4096))}
    assert found == {1: 0, 2: True, 3: 1, 4: 0}


def _serve(server: Server, ended: list[BaseException | None]) -> None:
    try:
        server.serve()
        ended.append(None)
    except BaseException as error:  # noqa: BLE001 - which it is decides the test
        ended.append(error)
