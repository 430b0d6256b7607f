"""A file of the agent's state folder is written whole or not at all, and what a disk that does not answer costs."""

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent import state_file
from kcover_ebpf.agent.state_file import LateWriter, write_json
from kcover_ebpf.errors import ActionError


@dataclass(frozen=True)
class _State:
    count: int


def test_write_json__a_file_in_a_folder_that_only_its_owner_may_enter(tmp_path: Path) -> None:
    path = tmp_path / "state" / "a.json"
    write_json(path, _State(1))
    write_json(path, _State(2))
    assert json.loads(path.read_text()) == {"count": 2}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert [other_path.name for other_path in path.parent.iterdir()] == ["a.json"]


def test_write_json__an_error_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, _State(1))
    (tmp_path / "a.draft").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_json(path, _State(2))
    assert json.loads(path.read_text()) == {"count": 1}


@pytest.mark.parametrize("durable", [False, True])
def test_write_json__a_durable_file_is_on_the_disk_before_it_is_visible(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a.json", []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.exists()))
    write_json(path, _State(1), durable=durable)
    assert synced == ([False] if durable else [])


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

    monkeypatch.setattr(state_file, "write_json", write)
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
