"""Starts of several checkouts: what the table says of their lines, and bad arguments."""

from pathlib import Path

import pytest

from bench.costbench.starts import main, table


def line(name: str, attached_s: float) -> dict[str, object]:
    return {"name": name, "attached_s": attached_s, "whole_s": 1.0, "cpu_s": 0.5, "rss_kib": 100}


def test_table__the_table_has_the_medians_of_each_checkout() -> None:
    lines = [line("before", 3.0), line("after", 1.0), line("before", 9.0), line("before", 4.0)]
    assert table(lines).splitlines()[2:] == [
        "| before | 3 | 4 | 1 | 0.5 | 100 |",
        "| after | 1 | 1 | 1 | 0.5 | 100 |",
    ]


def test_main__what_is_no_checkout_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([f"before={tmp_path}", "--into", str(tmp_path / "lines.jsonl")])
    assert left.value.code == 2
    assert "run make build there" in capsys.readouterr().err.splitlines()[-1]
