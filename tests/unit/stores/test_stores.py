"""Addresses of stores, keys of parts, a folder as a store, and what a store of S3 is asked and answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcover_ebpf.errors import StoreError, UsageError
from kcover_ebpf.stores.opened import FolderStore
from kcover_ebpf.stores.s3_store import S3Store, credentials_in, credentials_of
from kcover_ebpf.stores.sigv4 import Credentials
from kcover_ebpf.stores.store import StoreAddress, part_key, store_address
from tests.unit.support.fake_api_server import Answer, serving


def test_store_address__a_bucket_with_a_prefix_or_a_folder() -> None:
    address = store_address("s3://incidents/prod/a", "https://minio.example:9000/", "eu-west-1")
    assert address == StoreAddress(
        "incidents", "prod/a/", None, "https://minio.example:9000", "eu-west-1"
    )
    assert address.text == "s3://incidents/prod/a/"
    assert store_address("s3://incidents").prefix == ""
    assert store_address("/mnt/incidents").folder == Path("/mnt/incidents")


@pytest.mark.parametrize(
    ("text", "endpoint", "region"),
    [
        ("incidents", "", "us-east-1"),
        ("https://incidents/a", "", "us-east-1"),
        ("s3://", "", "us-east-1"),
        ("s3://Incidents", "", "us-east-1"),
        ("s3://incidents/a?b=c", "", "us-east-1"),
        ("s3://incidents/../other", "", "us-east-1"),
        ("s3://incidents/a b", "", "us-east-1"),
        ("s3://incidents", "minio:9000", "us-east-1"),
        ("s3://incidents", "https://user:word@minio", "us-east-1"),
        ("s3://incidents", "https://minio/path", "us-east-1"),
        ("s3://incidents", "https://minio:port", "us-east-1"),
        ("s3://incidents", "", "Ireland"),
    ],
)
def test_store_address__anything_else_is_one_line_that_says_what_to_write(
    text: str, endpoint: str, region: str
) -> None:
    with pytest.raises(UsageError, match=r"write|must not"):
        store_address(text, endpoint, region)


def test_part_key__the_parts_of_an_incident_are_in_one_folder_and_no_name_leaves_it() -> None:
    bundle = "20260101T000012.000Z-train-x7k2"
    assert part_key("ml", "n7", bundle) == "ml/train-x7k2/n7.20260101T000012.000Z.tar.gz"
    assert part_key("../a", "../../n", "x-../../y") == "_a/_.._y/_.._n.x.tar.gz"


def test_folder_store__what_is_there_stays_and_is_complete(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    assert store.get("ml/a/n.tar.gz", 10) is None
    assert store.put("ml/a/n.tar.gz", b"first")
    assert not store.put("ml/a/n.tar.gz", b"second")
    assert store.get("ml/a/n.tar.gz", 10) == b"first"
    assert [path.name for path in (tmp_path / "ml/a").iterdir()] == ["n.tar.gz"]
    with pytest.raises(StoreError, match="larger"):
        store.get("ml/a/n.tar.gz", 4)


def test_folder_store__a_volume_that_is_not_mounted_does_not_become_a_folder(
    tmp_path: Path,
) -> None:
    with pytest.raises(StoreError, match="mounted"):
        FolderStore(tmp_path / "volume").put("a", b"")
    assert not (tmp_path / "volume").exists()


def store_at(url: str, credentials: Credentials | None = None) -> S3Store:
    address = store_address("s3://incidents/prod", url)
    return S3Store(address, lambda: credentials or Credentials("A", "secret-word"), timeout_s=5.0)


def test_s3_store__an_object_is_written_on_the_condition_that_there_is_none() -> None:
    with serving(lambda _: Answer(200)) as server:
        assert store_at(server.url).put("ml/a/n.tar.gz", b"[1]")
        (request,) = server.requests
    assert (request.method, request.path) == ("PUT", "/incidents/prod/ml/a/n.tar.gz")
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["if-none-match"] == "*"
    assert "if-none-match" in headers["authorization"]
    assert "secret-word" not in str(headers)


def test_s3_store__one_that_is_there_already_stays() -> None:
    with serving(lambda _: Answer(412)) as server:
        assert not store_at(server.url).put("a", b"[1]")


@pytest.mark.parametrize("status", [301, 307, 403, 404, 409, 500, 503])
def test_s3_store__what_it_refuses_is_an_error_without_secrets_and_no_redirect_is_followed(
    status: int,
) -> None:
    answer = Answer(status, headers={"Location": "http://127.0.0.1:1/elsewhere"})
    with (
        serving(lambda _: answer) as server,
        pytest.raises(StoreError, match=f"answered {status}") as caught,
    ):
        store_at(server.url).put("a", b"[1]")
    assert "secret-word" not in str(caught.value)


def test_s3_store__what_is_not_there_is_none_and_what_is_too_large_is_an_error() -> None:
    with serving(lambda _: Answer(404)) as server:
        assert store_at(server.url).get("a", 10) is None
    with serving(lambda _: Answer(lines=(b"x" * 11,))) as server:
        assert store_at(server.url).get("a", 11) == b"x" * 11
        with pytest.raises(StoreError, match="larger"):
            store_at(server.url).get("a", 10)


def test_s3_store__an_answer_that_is_cut_is_an_error() -> None:
    cut = Answer(lines=(b"x" * 50,), headers={"Content-Length": "100"})
    with serving(lambda _: cut) as server, pytest.raises(StoreError, match="IncompleteRead"):
        store_at(server.url).get("a", 1000)


def test_s3_store__no_answer_is_an_error() -> None:
    with pytest.raises(StoreError, match="does not answer"):
        store_at("http://127.0.0.1:1").get("a", 10)


def test_credentials__come_from_files_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "accessKey").write_text("A\n")
    with pytest.raises(StoreError, match="secretKey"):
        credentials_in(tmp_path)
    (tmp_path / "secretKey").write_text("S\n")
    assert credentials_in(tmp_path) == Credentials("A", "S")
    (tmp_path / "sessionToken").write_text("T")
    assert credentials_in(tmp_path) == Credentials("A", "S", "T")
    (tmp_path / "secretKey").write_text("two words")
    with pytest.raises(StoreError, match="one word"):
        credentials_in(tmp_path)
    environment = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
    assert credentials_of(environment) == Credentials("A", "S")
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID"):
        credentials_of({})
