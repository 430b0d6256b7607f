"""A confined reader: whatever becomes of it, who asked gets an answer or a reason in time, and the next one starts."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.agent.reader import client
from kcover_ebpf.agent.reader.client import ConfinedReader
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.errors import ReaderError
from tests.waiting import until

pytestmark = pytest.mark.needs("root")
SMALL = Confinement(data_bytes=64 << 20, cpu_s=60)
PATIENCE_S = 60.0


class FakeLeftBehind:
    """In the place of the helpers that hang in the kernel."""

    def __init__(self, number: int) -> None:
        self.number, self.asked = number, 0

    def count(self) -> int:
        self.asked += 1
        return self.number


class Asked:
    """A reader that may be made to do anything, and what was said of its ends."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.reader = ConfinedReader(
            "test", SMALL, lambda _, why: self.ends.append(why), "tests.unit.support.hostile_reader"
        )
        self.reader.start()

    def error(self, operation: str, deadline_s: float = PATIENCE_S, **given: str) -> ReaderError:
        with pytest.raises(ReaderError) as caught:
            self.reader.ask(operation, given, deadline_s)
        return caught.value

    def is_well(self) -> bool:
        answer = self.reader.ask("echo", {"text": "x"}, PATIENCE_S)
        return bool(answer == {"given": "x", "read": []})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setattr(client, "READER_AGAIN_S", 0.05)
    made = Asked()
    yield made
    made.reader.close()


def test_ask__an_answer_and_what_descriptors_led_to(asked: Asked) -> None:
    inner, outer = os.pipe()
    os.write(outer, b"from a pipe")
    answer = asked.reader.ask("echo", {"text": "a" * 300_000}, PATIENCE_S, (inner,))
    assert answer == {"given": "a" * 300_000, "read": ["from a pipe"]}
    for number in (inner, outer):
        os.close(number)
    assert asked.reader.starts == 1


def test_ask__what_it_does_not_know_is_refused_and_it_lives(asked: Asked) -> None:
    assert "there is no such operation" in str(asked.error("dance"))
    assert asked.is_well()
    assert (asked.ends, asked.reader.starts) == ([], 1)


def test_ask__a_parser_that_keeps_the_interpreter_lock_costs_the_reader_alone(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind of the regular expression that stopped every thread of the agent for hours."""
    monkeypatch.setattr(client, "READER_PING_S", 1.0)
    assert asked.is_well()
    turns = 0

    def count() -> None:
        nonlocal turns
        while not asked.ends:
            turns += 1
            time.sleep(0.01)

    ticking = threading.Thread(target=count)
    ticking.start()
    error = asked.error("lock", 1.0)
    assert (str(error), error.at) == ("no answer to lock within 1 s", "the long line")
    ticking.join(PATIENCE_S)
    assert turns > 20, "our threads ran meanwhile"
    assert asked.ends == ["it did not respond"]
    assert asked.is_well()
    assert asked.reader.starts == 2


def test_ask__a_file_that_does_not_let_it_go_costs_one_thread_of_it(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MOST_STUCK", 3)
    os.mkfifo(tmp_path / "pipe")
    # a question whose time is over before its reader has started occupies no thread
    assert asked.is_well()
    for _ in range(2):
        error = asked.error("block", 0.5, path=str(tmp_path / "pipe"))
        assert error.at in ("a pipe", "")
        assert asked.is_well()
    assert (asked.ends, asked.reader.starts) == ([], 1)
    asked.error("block", 0.5, path=str(tmp_path / "pipe"))
    until(lambda: bool(asked.ends))
    assert asked.ends == ["too many of its threads are stuck"]
    assert asked.is_well()


def test_ask__a_long_deadline_does_not_delay_that_a_stuck_reader_is_noticed(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READER_PING_S", 1.0)
    monkeypatch.setattr(client, "READER_PATIENCE_S", 0.5)
    assert asked.is_well()
    error = asked.error("lock", 100 * PATIENCE_S)
    assert (str(error), error.at) == (
        "the reader of test ended: it did not respond",
        "the long line",
    )
    assert asked.is_well()


def test_ask__no_reader_is_started_while_several_before_it_hang(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked.is_well()
    hanging = FakeLeftBehind(client._MOST_LEFT)
    monkeypatch.setattr(helper, "left_behind", hanging)
    asked.error("crash")
    until(lambda: hanging.asked > 3)
    assert "earlier processes hang in the kernel" in str(asked.error("echo", 0.1, text="x"))
    hanging.number = 0
    assert asked.is_well()


def test_ask__memory_beyond_its_limit_is_an_answer(asked: Asked) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "MemoryError" in str(asked.error("eat"))
    assert asked.is_well()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 20_000


def test_ask__a_crash_is_said_with_what_it_worked_on(asked: Asked) -> None:
    error = asked.error("crash")
    assert ("signal 11" in str(error), error.at) == (True, "a bad pointer")
    assert asked.is_well()


def test_ask__a_reader_that_is_killed_is_started_again(asked: Asked) -> None:
    assert asked.is_well()
    assert asked.reader.pid is not None
    os.kill(asked.reader.pid, signal.SIGKILL)
    until(lambda: bool(asked.ends))
    assert asked.ends == ["signal 9"]
    assert asked.is_well()


def test_ask__an_answer_beyond_the_bounds_is_refused_where_it_is_made(asked: Asked) -> None:
    assert "at most 1048576 are allowed" in str(asked.error("much"))
    assert asked.is_well()


def test_ask__one_that_was_taken_over_cannot_make_us_build_what_it_likes(asked: Asked) -> None:
    assert asked.is_well(), "its start takes none of the time for an answer"
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = asked.error("lie")
    assert "more parts than are allowed" in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 20_000
    assert asked.is_well()


def test_ask__one_that_says_without_end_where_it_is_is_not_waited_for(asked: Asked) -> None:
    assert asked.is_well()
    error = asked.error("chatter", 1.0)
    assert "no answer to chatter" in str(error)
    assert error.at == "x" * 256


def test_ask__one_that_cannot_be_started_is_a_reason_and_not_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    ends: list[str] = []
    reader = ConfinedReader("test", SMALL, lambda _, why: ends.append(why))
    reader.start()
    with pytest.raises(ReaderError, match="cannot be started: No such file"):
        reader.ask("echo", {}, 1.0)
    reader.close()
    assert ends


def test_close__the_process_is_gone(asked: Asked) -> None:
    assert asked.is_well()
    pid = asked.reader.pid
    asked.reader.close()
    assert not Path(f"/proc/{pid}").exists()
    assert asked.ends == []
