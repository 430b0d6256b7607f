"""`kcover-ebpf report`: archives and tapes to a page and to other files; one line for what is neither."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kcover_ebpf import cli
from kcover_ebpf.archive.incident_archive import Archive, packed
from kcover_ebpf.cli.report import read
from kcover_ebpf.output import archives
from kcover_ebpf.output.bundles import write_bundle
from tests.unit.support import incident_archives as build

ROOT = Path(__file__).resolve().parents[3]
TAPE = ROOT / "tests/tapes/locked.tape.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(tmp_path, "20260101T000000.000Z-train", packed(build.archive()))


def test_report__a_folder_and_its_tar_file_have_the_same_page(folder: Path, tmp_path: Path) -> None:
    packed_path = tmp_path / "a.tar.gz"
    packed_path.write_bytes(gzip.compress(archives.tar_of(archives.read_files(folder))))
    pages = []
    for path in (folder, packed_path):
        page = tmp_path / "page.html"
        assert cli.main(["report", str(path), "-o", str(page)]) == 0
        pages.append(page.read_text())
    assert pages[0] == pages[1]
    assert "Rank 11 (pod train-11" in pages[0]


def test_report__a_tape_has_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", str(TAPE), "-o", str(page)]) == 0
    text = page.read_text()
    assert "waits for a lock that is not released" in text
    assert "it was reported only" in text
    assert text.count('<g class="culprit">') == 1
    assert "first sign" not in text


def test_report__a_tape_is_not_of_the_host_that_makes_its_page() -> None:
    (part,) = read(TAPE).parts
    assert part.report is not None
    assert (part.node, part.report.node) == ("host", "host")


def test_report__a_name_in_an_error_cannot_command_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [
        write_bundle(tmp_path, name, packed(Archive(job)))
        for name, job in (("a", "ml/llm"), ("b", "\x1b]0;owned\x07"))
    ]
    assert cli.main(["report", *map(str, parts)]) == 2
    assert r"different jobs: \x1b]0;owned\x07, ml/llm" in capfd.readouterr().err


def test_report__other_programs_can_read_the_stacks_and_the_timeline(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    texts = {}
    for form in ("stacks", "collapsed", "speedscope", "timeline"):
        assert cli.main(["report", str(folder), "-f", form]) == 0
        texts[form] = capfdbinary.readouterr().out.decode()
    assert "0-10,12-15 (not 11)" in texts["stacks"]
    assert texts["collapsed"].splitlines()[0].endswith("nfs_wait_on_request_[k] 1")
    assert json.loads(texts["speedscope"])["profiles"][0]["endValue"] == 16
    assert json.loads(texts["timeline"])["displayTimeUnit"] == "ms"


def wrong(path: Path, name: str) -> Path:
    found = path / name
    if name == "text":
        found.write_text("no tape\n")
    elif name == "empty":
        found.mkdir()
    elif name == "cut.tar":
        with tarfile.open(found, "w") as archive:
            archive.add(ROOT / "README.md", "README.md")
        found.write_bytes(found.read_bytes()[:700])
    elif name == "damaged.tar.gz":
        packer = zlib.compressobj(wbits=31)
        begin = packer.compress(archives.tar_of({"a": b"a" * 300_000})[:200_000])
        # a kind of block that does not exist
        found.write_bytes(begin + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 64)
    return found


@pytest.mark.parametrize("name", ["absent", "text", "empty", "cut.tar", "damaged.tar.gz"])
def test_report__what_is_no_archive_is_one_line_and_exit_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(wrong(tmp_path, name))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kcover-ebpf: ")
    assert err.count("\n") == 1
    assert "internal error" not in err


def test_report__a_page_that_cannot_be_written_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = folder / "absent/page.html"
    assert cli.main(["report", str(folder), "-o", str(page)]) == 2
    assert f"cannot write {page}: No such file" in capsys.readouterr().err


def test_read_files__links_and_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "a").write_text("a" * 100)
    assert set(archives.read_files(tmp_path)) == {"a"}
    monkeypatch.setattr(archives, "ARCHIVE_MOST_BYTES", 10)
    with pytest.raises(Exception, match="larger than an archive may be"):
        archives.read_files(tmp_path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_read_files__what_headers_unpack_to_counts(
    pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, path = io.BytesIO(), tmp_path / "a.tar"
    with tarfile.open(fileobj=out, mode="w", pax_headers={"comment": "a" * 100_000}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    path.write_bytes(pack(out.getvalue()))
    assert archives.read_files(path) == {"a": b""}
    monkeypatch.setattr(archives, "ARCHIVE_MOST_BYTES", 50_000)
    with pytest.raises(Exception, match="larger than an archive may be"):
        archives.read_files(path)


def test_report__the_parts_that_a_store_has_are_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = build.archive()
    paths = []
    for part in whole.parts:
        path = tmp_path / f"{part.node}.tar"
        path.write_bytes(archives.tar_of(packed(Archive(whole.job, whole.name, parts=(part,)))))
        paths.append(str(path))
    page = tmp_path / "page.html"
    assert cli.main(["report", *paths, "-o", str(page)]) == 0
    assert all(part.node in page.read_text() for part in whole.parts)
    other = tmp_path / "other.tar"
    other.write_bytes(archives.tar_of(packed(Archive("ns/other", parts=whole.parts[:1]))))
    assert cli.main(["report", paths[0], str(other), "-o", str(page)]) == 2
    assert "parts of different jobs: ns/other, research/train" in capsys.readouterr().err
