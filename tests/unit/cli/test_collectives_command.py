"""`kcover-ebpf collectives`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcover_ebpf import cli
from tests.unit.collectives.inspector.inspector_files import even, group, late, write


def test_collectives__a_late_rank_is_named_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "dump", group("0xa", range(8), late(5, 0.030)))
    assert cli.main(["collectives", str(folder)]) == 1
    finding, summary = capsys.readouterr().out.splitlines()
    assert finding.startswith("rank 5 on node-1 is the last to begin AllReduce of 64 MiB over 8")
    assert "the others wait 30.0 ms for it" in finding
    assert summary == "1 findings in 480 records of 8 files"


def test_collectives__json_has_one_object_for_each_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "dump", group("0xa", range(4), late(2, 0.030)))
    assert cli.main(["collectives", str(folder), "-o", "json"]) == 1
    (found,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert (found["schema"], found["finding"]) == ("kcover.io/v1alpha1", "late_rank")
    assert found["members"] == [{"rank": 2, "job_rank": None, "host": "node-0", "pid": 102}]


def test_collectives__files_of_several_hosts_are_read_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [group(f"0x{at}", range(4 * at, 4 * at + 4), even) for at in range(3)]
    write(tmp_path / "a", *groups)
    write(tmp_path / "b", group("0x9", range(12, 16), lambda number, at: 2 * even(number, at)))
    assert cli.main(["collectives", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "a slow link; all slow groups are on node-3" in capsys.readouterr().out


def test_collectives__what_is_even_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "dump", group("0xa", range(4), even))
    (folder / "cut").write_text('{"header": ')
    assert cli.main(["collectives", str(folder)]) == 0
    assert capsys.readouterr().out == (
        "0 findings in 240 records of 5 files; 1 lines could not be read\n"
    )


def test_collectives__without_a_record_it_cannot_observe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["collectives", str(tmp_path)]) == 3
    assert "does NCCL Inspector run?" in capsys.readouterr().err
    assert cli.main(["collectives", "--pid", "1"]) == 3
    assert "has no folder of NCCL Inspector" in capsys.readouterr().err
