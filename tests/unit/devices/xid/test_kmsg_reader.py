"""The kernel's log, and what a container has in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcover_ebpf.devices.xid import kmsg_reader


@pytest.fixture(params=["null", "file", "link"])
def no_log(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """As rootless Kubernetes and LXD replace the log, or as a program that wrote to it left it."""
    path = tmp_path / "kmsg"
    match request.param:
        case "null":
            return Path("/dev/null")
        case "link":
            path.symlink_to("/dev/null")
        case _:
            path.write_text("<7>a line of no log\n")
    return path


def test_kmsg_reader__what_is_not_the_log_cannot_be_read(no_log: Path) -> None:
    """Its end is never reached: each further read returns nothing."""
    with pytest.raises(OSError, match="not the kernel's log"):
        next(kmsg_reader.stored(str(no_log)))
    with pytest.raises(OSError, match="not the kernel's log"):
        kmsg_reader.KmsgReader(str(no_log))


def test_say__no_file_is_made_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kmsg_reader.say(str(tmp_path / "kmsg"), "<7>hello\n")
    assert not list(tmp_path.iterdir())


def test_say__what_is_not_the_log_is_not_written(no_log: Path) -> None:
    before = no_log.read_bytes()
    with pytest.raises(OSError, match="not the kernel's log"):
        kmsg_reader.say(str(no_log), "<7>hello\n")
    assert no_log.read_bytes() == before


@pytest.mark.needs("root")
def test_say__a_line_is_read_again() -> None:
    reader = kmsg_reader.KmsgReader()
    kmsg_reader.say("/dev/kmsg", "<7>NVRM: a line of a test, no Xid\n")
    try:
        assert "NVRM: a line of a test, no Xid" in [record.text for record in reader.records()]
    finally:
        reader.close()
