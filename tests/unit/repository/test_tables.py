"""Files of an operator: both forms, and one line for each that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcover_ebpf.errors import PolicyError
from kcover_ebpf.tables import read_table


def written(folder: Path, content: bytes) -> Path:
    path = folder / "table"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("content", [b'a = 1\nb = "x"\n', b' {"a": 1, "b": "x"}'])
def test_tables__the_form_shows_in_the_file(tmp_path: Path, content: bytes) -> None:
    assert read_table(written(tmp_path, content), "policy") == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a = ", "the file is not valid TOML"),
        (b"[1, 2]", "the file is not valid TOML"),
        (b'{"a": ', "the file is not valid JSON"),
        (b"a = \xff", "the file is not valid TOML"),
        (b"a = " + b"[" * 5000, "the file is not valid TOML"),
        (b"a" * (1 << 20) + b"b", "the file is larger than 1 MiB"),
    ],
)
def test_tables__a_bad_file_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(PolicyError) as raised:
        read_table(path, "job rules")
    assert str(raised.value).startswith(f"job rules {path}: {says}")
    assert "\n" not in str(raised.value)


def test_tables__a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot read policy .*/none: No such file"):
        read_table(tmp_path / "none", "policy")
