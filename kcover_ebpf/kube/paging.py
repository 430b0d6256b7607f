"""All objects of a collection at once, for programs that do not watch it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kcover_ebpf.errors import TooLarge
from kcover_ebpf.kube.client import ApiClient

_PAGE = 200
_SMALLER = 8
"""A page that is too large is asked for in so many parts: objects of a tenant may be large."""


def all_objects(
    client: ApiClient, path: str, query: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Each object, page by page; raises `ApiError`."""
    asked, size = dict(query or {}), _PAGE
    while True:
        try:
            page = client.list(path, {**asked, "limit": str(size)})
        except TooLarge:
            if size == 1:
                raise
            size = max(1, size // _SMALLER)
            continue
        yield from page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return
        asked["continue"] = str(token)
