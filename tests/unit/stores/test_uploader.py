"""What is copied, what is not, and what a store that fails costs."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kcover_ebpf.archive.incident_archive import Archive, packed, unpacked
from kcover_ebpf.errors import StoreError, UsageError
from kcover_ebpf.output import archives
from kcover_ebpf.output.bundles import bundle_name, write_bundle
from kcover_ebpf.stores.uploader import Uploader, UploadMetrics, UploadResult
from kcover_ebpf.tunables.sending import COPIED_MOST_BYTES, LONGEST_RETRY_S, RETRY_S, SEARCH_S
from tests.unit.support import incident_archives as build

PART = build.archive().parts[0]


@dataclass
class FakeStore:
    kept: dict[str, bytes] = field(default_factory=dict)
    is_down: bool = False
    refused: str = ""
    """Part of the keys that it refuses."""

    def put(self, key: str, content: bytes) -> bool:
        if self.is_down or (self.refused and self.refused in key):
            raise StoreError("store.example answered 503")
        return self.kept.setdefault(key, content) is content

    def get(self, key: str, most_bytes: int) -> bytes | None:
        assert most_bytes
        return self.kept.get(key)


@dataclass
class Node:
    folder: Path
    store: FakeStore
    results: list[UploadResult] = field(default_factory=list)

    def keep(self, second: int, job: str = "ml/train") -> None:
        files = packed(Archive(job, "train-x7k2", parts=(PART,)))
        write_bundle(self.folder, bundle_name(1.7e9 + second, "train-x7k2"), files)

    def uploader(self) -> Uploader:
        return Uploader(self.folder, "n7", self.store, self.results.append)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "bundles", FakeStore())


def test_uploader__each_part_is_copied_once_and_reads_as_the_bundle_does(node: Node) -> None:
    uploader = node.uploader()
    assert uploader.turn() == SEARCH_S  # there is no folder yet
    node.keep(1)
    node.keep(2)
    uploader.turn()
    uploader.turn()
    assert node.results == [UploadResult.COPIED] * 2
    keys = [
        key for key in node.store.kept if re.fullmatch(r"ml/train-x7k2/n7\.[^/]+\.tar\.gz", key)
    ]
    assert len(keys) == 2
    archive = unpacked(archives.from_tar(node.store.kept[keys[0]], "part"), "part")
    assert archive.parts == (PART,)
    assert archive.missing == ()


def test_uploader__one_that_starts_anew_copies_nothing_twice(node: Node) -> None:
    node.keep(1)
    node.uploader().turn()
    node.uploader().turn()
    assert node.results == [UploadResult.COPIED, UploadResult.KNOWN]


def test_uploader__a_store_that_fails_is_asked_ever_less_often_and_loses_nothing(
    node: Node,
) -> None:
    node.keep(1)
    node.keep(2)
    node.store.is_down = True
    uploader = node.uploader()
    waits = [uploader.turn() for _ in range(10)]
    assert waits[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert waits[-1] == LONGEST_RETRY_S
    assert uploader.waiting == 2
    # one request a pass, however many wait
    assert node.results == [UploadResult.FAILED] * 10
    node.store.is_down = False
    assert uploader.turn() == SEARCH_S
    assert (len(node.store.kept), uploader.waiting) == (2, 0)


def test_uploader__a_part_that_the_store_refuses_holds_up_no_other(node: Node) -> None:
    for second in (1, 2, 3):
        node.keep(second)
    node.store.refused = "20231114T221321"  # the oldest one
    uploader = node.uploader()
    for _ in range(3):
        uploader.turn()
    assert (len(node.store.kept), uploader.waiting) == (2, 1)
    node.keep(4)
    uploader.turn()
    assert (len(node.store.kept), uploader.waiting) == (3, 1)


def test_uploader__a_part_that_cannot_be_read_now_is_copied_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptors(_: Path) -> dict[str, bytes]:
        raise UsageError("cannot read it") from OSError(errno.EMFILE, "Too many open files")

    node.keep(1)
    uploader = node.uploader()
    with monkeypatch.context() as context:
        context.setattr(archives, "read_files", no_descriptors)
        assert uploader.turn() == RETRY_S
    uploader.turn()
    assert node.results == [UploadResult.FAILED, UploadResult.COPIED]


def _bug_report(node: Node) -> None:
    write_bundle(
        node.folder, bundle_name(1.7e9, "node-1-0000_5d_00.0-xid_79"), {"faults.json": b""}
    )


def _one_host(node: Node) -> None:
    node.keep(1, job="python3")


def _too_large(node: Node) -> None:
    node.keep(1)
    (path,) = node.folder.iterdir()
    with (path / "large").open("wb") as file:
        file.truncate(COPIED_MOST_BYTES)


def _no_json(node: Node) -> None:
    write_bundle(node.folder, bundle_name(1.7e9, "a"), {"manifest.json": b"[" * 100_000})


def _no_file(node: Node) -> None:
    write_bundle(node.folder, bundle_name(1.7e9, "a"), {"manifest.json": b"{}"})
    (path,) = node.folder.iterdir()
    (path / "manifest.json").unlink()
    (path / "manifest.json").symlink_to("/etc/shadow")


@pytest.mark.parametrize("make", [_bug_report, _one_host, _too_large, _no_json, _no_file])
def test_uploader__what_is_no_part_of_an_incident_stays_on_the_node(
    node: Node, make: Callable[[Node], None]
) -> None:
    make(node)
    uploader = node.uploader()
    assert uploader.turn() == SEARCH_S
    uploader.turn()
    assert node.results == [UploadResult.REFUSED]
    assert node.store.kept == {}


def test_uploader__its_metrics_count_each_attempt(node: Node) -> None:
    counts = UploadMetrics()
    uploader = Uploader(node.folder, "n7", node.store, counts.on_result)
    counts.follow(uploader)
    node.keep(1)
    node.store.is_down = True
    uploader.turn()
    value = counts.registry.get_sample_value
    assert value("kcover_uploads_total", {"result": "failed"}) == 1
    assert value("kcover_uploads_total", {"result": "copied"}) == 0
    assert value("kcover_uploads_waiting") == 1
