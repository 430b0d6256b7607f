"""The journal's file: what a disk that does not answer, or takes nothing, costs who writes to it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent.orders import late_writer
from kcover_ebpf.agent.orders.late_writer import LateWriter
from kcover_ebpf.errors import ActionError


@dataclass(frozen=True)
class _State:
    count: int


def test_late_writer__what_was_written_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    writer = LateWriter(path, 5.0)
    for count in range(50):
        writer.write(_State(count))
        assert json.loads(path.read_text()) == {"count": count}


def test_late_writer__a_disk_that_is_full_is_named_each_time(tmp_path: Path) -> None:
    (tmp_path / "a.draft").mkdir()
    writer = LateWriter(tmp_path / "a.json", 5.0)
    for count in range(2):
        with pytest.raises(ActionError, match=r"cannot write .*a.json: Is a directory"):
            writer.write(_State(count))
    (tmp_path / "a.draft").rmdir()
    writer.write(_State(7))


def test_late_writer__a_disk_that_does_not_answer_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, written = threading.Event(), []

    def write(_path: Path, value: object, *, durable: bool) -> None:
        assert durable
        answers.wait(30)
        written.append(value)

    monkeypatch.setattr(late_writer, "write_json", write)
    writer = LateWriter(tmp_path / "a.json", 0.2)
    waits: list[object] = []
    wait_for = writer._changed.wait_for

    def counted(*args: Any) -> bool:
        waits.append(args)
        return bool(wait_for(*args))

    monkeypatch.setattr(writer._changed, "wait_for", counted)
    for count in range(20):
        with pytest.raises(ActionError, match="the disk does not answer"):
            writer.write(_State(count))
    assert len(waits) == 1, "only the first found out"
    answers.set()
    while writer._is_running:
        time.sleep(0.005)
    writer.write(_State(99))
    assert written == [_State(0), _State(19), _State(99)]
