"""A file of the agent's state folder is written whole or not at all."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from kcover_ebpf.agent.state_file import write_json


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
