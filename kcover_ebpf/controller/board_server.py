"""The read-only page of the controller: the content of `kubectl kcover top`, from what the controller keeps anyway."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.output.board_page import HEADERS, page_of
from kcover_ebpf.output.job_board import board_of
from kcover_ebpf.tunables.controller import PAGE_KEPT_S

_PLAIN = [("Content-Type", "text/plain; charset=utf-8")]
_METHODS = ("GET", "HEAD")


class BoardPage:
    """A WSGI application with one page, rendered at most once per interval however often it is requested."""

    def __init__(self, cache: ObjectCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = cache, clock
        self._lock = threading.Lock()
        self._made_s, self._content = float("-inf"), b""

    def __call__(
        self, environ: Mapping[str, object], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") not in _METHODS:
            start_response("405 Method Not Allowed", [*_PLAIN, ("Allow", ", ".join(_METHODS))])
            return [b"this page is only read\n"]
        if environ.get("PATH_INFO") not in ("", "/"):
            start_response("404 Not Found", _PLAIN)
            return [b"there is one page, /\n"]
        content = self._fresh()
        start_response("200 OK", [*HEADERS, ("Content-Length", str(len(content)))])
        return [content] if environ.get("REQUEST_METHOD") == "GET" else []

    def _fresh(self) -> bytes:
        with self._lock:
            if self._clock() - self._made_s >= PAGE_KEPT_S:
                self._content, self._made_s = self._made(), self._clock()
            return self._content

    def _made(self) -> bytes:
        now_s = self._store.wall()
        reports = [
            (gang_id.namespace, received)
            for gang_id in self._store.gangs
            for received in self._store.seen(gang_id)
        ]
        jobs = board_of(reports, list(self._store.incidents.values()), now_s)
        return page_of(jobs, now_s).encode()
