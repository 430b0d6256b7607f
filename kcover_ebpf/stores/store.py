"""What a store can do, which one an operator's address means, and the names of parts in it. Pure."""

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
    """Where copies of parts are; keys have "/" between their words."""

    def put(self, key: str, content: bytes) -> bool:
        """Keep it; False where there is one of this name already, which stays. Raises `StoreError`."""

    def get(self, key: str, most_bytes: int) -> bytes | None:
        """The content; None where there is none. Raises `StoreError`, also for one of more bytes."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A bucket, or a folder."""

    bucket: str = ""
    """Empty: it is a folder."""
    prefix: str = ""
    """In front of every key; empty, or ending in "/"."""
    folder: Path | None = None
    endpoint: str = ""
    """http(s)://HOST[:PORT] of the store; empty: Amazon's, of the region."""
    region: str = "us-east-1"
    """That a request is signed for; most stores but Amazon's take any."""

    @property
    def text(self) -> str:
        """As an operator writes it."""
        return str(self.folder) if self.folder is not None else f"s3://{self.bucket}/{self.prefix}"


def store_address(text: str, endpoint: str = "", region: str = "us-east-1") -> StoreAddress:
    """Of s3://BUCKET/PREFIX or /FOLDER; raises `UsageError`, one line that says what to write."""
    if text.startswith("/"):
        return StoreAddress(folder=Path(text))
    parts = urlsplit(text)
    prefix = parts.path.strip("/")
    is_plain = parts.scheme == "s3" and not (parts.query or parts.fragment)
    if not (is_plain and _BUCKET.fullmatch(parts.netloc) and _PREFIX.fullmatch(prefix)):
        raise UsageError(f"{text[:200]!r} is no store: write s3://BUCKET/PREFIX, or /FOLDER")
    if ".." in prefix.split("/"):
        raise UsageError(f"{text[:200]!r} is no store: its prefix must not contain '..'")
    if endpoint and not _is_origin(endpoint):
        raise UsageError(
            f"{endpoint[:200]!r} is no endpoint: write https://HOST or http://HOST:PORT"
        )
    if not _REGION.fullmatch(region):
        raise UsageError(f"{region[:80]!r} is no region: write one like us-east-1")
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
    """NAMESPACE/WHAT/NODE.TIME.tar.gz: made from the Incident alone, so that a reader need not list a store.

    `bundle`: a name as `output.bundles.bundle_name` makes it, TIME-WHAT. WHAT is the incident, or the gang where the
    node did not know it: the parts of one incident are in one folder.
    """
    time_text, _, what = bundle.partition("-")
    return f"{plain(namespace)}/{plain(what)}/{plain(node)}.{plain(time_text)}{_ENDING}"
