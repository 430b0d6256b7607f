"""What `--join` asks for, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcover_ebpf.errors import UsageError
from kcover_ebpf.run.join.options import PORT, make

SECRET = "0123456789abcdef"


def secret(folder: Path, text: str = SECRET, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1", ("127.0.0.1", PORT)),
        ("127.0.0.1:7000", ("127.0.0.1", 7000)),
        ("::1", ("::1", PORT)),
        ("[::1]:7000", ("::1", 7000)),
    ],
)
def test_make__an_address_has_a_port_or_gets_the_usual_one(
    tmp_path: Path, text: str, wanted: tuple[str, int]
) -> None:
    made = make(text, 2, secret(tmp_path, f"{SECRET}\n"))
    assert made is not None
    assert (made.host, made.port, made.hosts, made.secret) == (*wanted, 2, SECRET.encode())


def test_make__without_join_there_is_none() -> None:
    assert make(None, None, None) is None


@pytest.mark.parametrize(
    ("join", "hosts", "said"),
    [
        (None, 2, "need --join HOST"),
        ("127.0.0.1", None, "--join needs --join-hosts N"),
        ("127.0.0.1", 1, "2 to 256"),
        ("127.0.0.1:0", 2, "give HOST or HOST:PORT"),
        ("127.0.0.1:x", 2, "give HOST or HOST:PORT"),
        (":7000", 2, "give HOST or HOST:PORT"),
    ],
)
def test_make__what_is_wrong_is_said(
    tmp_path: Path, join: str | None, hosts: int | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make(join, hosts, secret(tmp_path))


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (SECRET, 0o640, "chmod 600"),
        ("short", 0o600, "at least 16 bytes"),
        (" " * 40, 0o600, "at least 16 bytes"),
        ("x" * 5000, 0o600, "larger than 4096 bytes"),
    ],
)
def test_make__a_weak_one_is_refused_and_never_shown(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        make("127.0.0.1", 2, secret(tmp_path, text, mode))
    assert text.strip() == "" or text not in str(caught.value)


def test_make__a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        make("127.0.0.1", 2, tmp_path / "none")
