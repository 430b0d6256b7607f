"""The operations of a store, operators' addresses of stores, and the keys of parts. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from kcover_ebpf.archive.manifest import plain
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]{0,500}")
_REGION = re.compile(r"[a-z0-9-]{1,63}")
_ENDING = ".tar.gz"


class PartStore(Protocol):
    """A store of copies of parts; words of a key are separated by "/"."""

    def put(self, key: str, content: bytes) -> bool:
        """Store a part; False if the key exists already, which stays unchanged. Raises `StoreError`."""

    def get(self, key: str, most_bytes: int) -> bytes | None:
        """The content; None if the key does not exist. Raises `StoreError`, also if it exceeds `most_bytes`."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Address of a bucket with a prefix, or of a folder."""

    bucket: str = ""
    """Name of the bucket; empty if the store is a folder."""
    prefix: str = ""
    """Prefix of every key; empty, or ends with "/"."""
    folder: Path | None = None
    endpoint: str = ""
    """http(s)://HOST[:PORT] of the store; empty: Amazon's endpoint for the region."""
    region: str = "us-east-1"
    """Region for the signature; most stores other than Amazon's accept any."""

    @property
    def text(self) -> str:
        """The address as an operator writes it: s3://BUCKET/PREFIX or /FOLDER."""
        return str(self.folder) if self.folder is not None else f"s3://{self.bucket}/{self.prefix}"


def store_address(text: str, endpoint: str = "", region: str = "us-east-1") -> StoreAddress:
    """Parse s3://BUCKET/PREFIX or /FOLDER; raises `UsageError` with one line that says what to write."""
    if text.startswith("/"):
        return StoreAddress(folder=Path(text))
    parts = urlsplit(text)
    prefix = parts.path.strip("/")
    is_plain = parts.scheme == "s3" and not (parts.query or parts.fragment)
    if not (is_plain and _BUCKET.fullmatch(parts.netloc) and _PREFIX.fullmatch(prefix)):
        raise UsageError(f"{text[:200]!r} is not a store: write s3://BUCKET/PREFIX, or /FOLDER")
    if ".." in prefix.split("/"):
        raise UsageError(f"{text[:200]!r} is not a valid store: its prefix must not contain '..'")
    if endpoint and not _is_origin(endpoint):
        raise UsageError(
            f"{endpoint[:200]!r} is not an endpoint: write https://HOST or http://HOST:PORT"
        )
    if not _REGION.fullmatch(region):
        raise UsageError(f"{region[:80]!r} is not a region: write one like us-east-1")
    return StoreAddress(
        parts.netloc, f"{prefix}/" if prefix else "", None, endpoint.rstrip("/"), region
    )


def _is_origin(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    extra = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
    return bool(good) and not extra and endpoint.isascii() and endpoint.isprintable()


def part_key(namespace: str, node: str, bundle: str) -> str:
    """NAMESPACE/WHAT/NODE.TIME.tar.gz: derived from the Incident alone, so that a reader need not list the store.

    `bundle`: a name TIME-WHAT from `output.bundles.bundle_name`. WHAT is the incident, or the gang if the node did
    not know the incident. So the parts of one incident are in one folder.
    """
    time_text, _, what = bundle.partition("-")
    return f"{plain(namespace)}/{plain(what)}/{plain(node)}.{plain(time_text)}{_ENDING}"
