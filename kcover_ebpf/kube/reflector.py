"""A collection kept up to date: list, then watch from there, and list again when history is gone.

`ListWatchState` is the pure half: it decides the next request and takes its result. `Reflector` sends the requests
in a separate thread and passes each change to a callback.

Source: Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Protocol

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, Gone, TooLarge
from kcover_ebpf.tunables.kube import (
    QUIET_STREAM_S,
    STREAM_S,
    WATCH_FIRST_DELAY_S,
    WATCH_HEALTHY_S,
    WATCH_LONGEST_DELAY_S,
)

Object = dict[str, Any]
_Kept = tuple[str, str, str]
"""(namespace, name, resourceVersion) of an object."""
PAGE = 500


class Change(Enum):
    """Kind of change of an object."""

    SET = "set"
    """The object is new, or changed."""
    GONE = "gone"
    SYNCED = "synced"
    """A list is complete; there is no object. Objects missing from the list were reported as gone before."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change; `object` is empty for SYNCED."""

    change: Change
    object: Object


class ListWatchState:
    """The state of one list-and-watch, without any transport."""

    def __init__(self) -> None:
        self.version: str | None = None
        """resourceVersion to watch from; None: list first."""
        self._known: dict[str, _Kept] = {}
        self._keys: dict[tuple[str, str], str] = {}
        """(namespace, name) -> uid."""
        self._seen: set[str] = set()
        self._failures = 0
        self.speaks = False
        """True if something arrived in the last watch, so that silence in the next one means something."""

    def begin(self) -> None:
        """Start a list, from its first page."""
        self._seen = set()

    def page(self, items: Iterable[Object]) -> Iterator[Event]:
        """Take one page of a list; returns the changes in it.

        A page is reported before the next one is requested, so a large list is never in memory as a whole.
        """
        for item in items:
            key = key_of(item)
            self._seen.add(key)
            kept = _kept(item)
            older = self._keys.get(kept[:2])
            if older is not None and older != key:
                # if a name is reused, the old object is reported gone before the new one
                yield self._forget(older)
            if self._known.get(key) != kept:
                self._keep(key, kept)
                yield Event(Change.SET, item)

    def listed(self, version: str) -> Iterator[Event]:
        """Complete the list; returns objects that disappeared unobserved."""
        for key in [key for key in self._known if key not in self._seen]:
            yield self._forget(key)
        self._seen = set()
        self.version = version
        yield Event(Change.SYNCED, {})

    def _keep(self, key: str, kept: _Kept) -> None:
        self._known[key] = kept
        self._keys[kept[:2]] = key

    def _forget(self, key: str) -> Event:
        namespace, name, version = self._known.pop(key)
        if self._keys.get((namespace, name)) == key:
            del self._keys[namespace, name]
        metadata = {"namespace": namespace, "name": name, "uid": key, "resourceVersion": version}
        return Event(Change.GONE, {"metadata": metadata})

    def reported(self, raw: Object) -> Event | None:
        """Take one line of a watch; None if it only moves the version; raises `Gone`, `ApiError`."""
        kind, item = raw.get("type"), raw.get("object")
        if not isinstance(item, dict):
            return None
        if kind == "ERROR":
            raise self._refused(item)
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            return None
        self.version = _version(item) or self.version
        if kind == "BOOKMARK":
            return None
        key = key_of(item)
        if kind == "DELETED":
            if key in self._known:
                self._forget(key)
            return Event(Change.GONE, item)
        self._keep(key, _kept(item))
        return Event(Change.SET, item)

    def _refused(self, status: Object) -> ApiError:
        code = status.get("code")
        text = f"watch: {code} {status.get('message', '')}"[:300]
        if code == 410:
            self.version = None
            return Gone(text, 410)
        return ApiError(text, code if isinstance(code, int) else 0)

    def failed(self, error: ApiError) -> float:
        """Take a failed list or watch; returns seconds to wait (before jitter) until the next try.

        If history is gone, the list is repeated at once, the first time.
        """
        self._failures += 1
        self.speaks = False
        if isinstance(error, Gone):
            self.version = None
            if self._failures == 1:
                return 0.0
        delay_s = min(
            WATCH_FIRST_DELAY_S * float(2 ** min(self._failures - 1, 16)), WATCH_LONGEST_DELAY_S
        )
        return max(delay_s, error.retry_after_s or 0.0)

    def ended(self, was_spoken: bool) -> None:
        """Take the end of a watch by the server; `was_spoken`: an event or a bookmark arrived in it."""
        self.speaks = was_spoken

    def worked(self) -> None:
        """Reset the failure count: a list was complete, or a watch lived long enough."""
        self._failures = 0


def key_of(item: Object) -> str:
    """Identity of an object within its collection: a name may be reused, a uid is not."""
    metadata = item.get("metadata") or {}
    return str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata.get('name', '')}")


def _version(item: Object) -> str:
    return str((item.get("metadata") or {}).get("resourceVersion") or "")


def _kept(item: Object) -> _Kept:
    # enough to report that it is gone; the listener keeps the whole objects
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or ""), _version(item)


class Transport(Protocol):
    """The methods of an API client that a watch needs."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """One page of a collection."""
        ...

    def stream(self, path: str, query: Mapping[str, str], timeout_s: int) -> Iterator[Object]:
        """Events until the server ends the watch."""
        ...


class Reflector:
    """Keeps one collection up to date in a thread; callbacks run in that thread."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        query: Mapping[str, str],
        on_event: Callable[[Event], None],
        on_error: Callable[[ApiError], None] = lambda _: None,
    ) -> None:
        """`query`: field or label selectors of the collection."""
        self._transport, self._path, self._query = transport, path, dict(query)
        self._on_event, self._on_error = on_event, on_error
        self._plan = ListWatchState()
        self._page = PAGE
        self._cached = True
        """True: the first list may be served from the server's memory (resourceVersion=0)."""
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        """The thread, so that its liveness can be checked."""
        self.synced = threading.Event()
        """Set once the first list is complete, before SYNCED is reported."""

    def start(self) -> None:
        """Start the thread; no error, of the API or of a listener, ends it."""
        self.thread.start()

    @property
    def is_alive(self) -> bool:
        """True from `start` on, as the thread never ends by itself."""
        return self.thread.is_alive()

    def stop(self) -> None:
        """Make the thread end soon; an open stream is left until the process ends."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self._once()
            except ApiError as error:
                if time.monotonic() - began_s > WATCH_HEALTHY_S:
                    self._plan.worked()
                self._on_error(error)
                # all agents lose the server at once; they must not all reconnect at once
                self._stop.wait(self._plan.failed(error) * random.uniform(0.5, 1.5))
            except Exception as error:  # noqa: BLE001 - a thread that ends would be deaf for ever
                self._on_error(ApiError(f"{self._path}: {error!r}"))
                self._plan.version = None
                self._stop.wait(WATCH_LONGEST_DELAY_S * random.uniform(0.5, 1.5))

    def _once(self) -> None:
        if self._plan.version is None:
            self._list()
        began_s, was_spoken = time.monotonic(), False
        asked = {
            **self._query,
            "resourceVersion": self._plan.version or "",
            "allowWatchBookmarks": "true",
        }
        for raw in self._transport.stream(self._path, asked, _stream_s(self._plan.speaks)):
            event, was_spoken = self._plan.reported(raw), True
            self._plan.worked()
            if event is not None:
                self._hand(event)
            if self._stop.is_set():
                return
        self._plan.ended(was_spoken)
        if time.monotonic() - began_s < 1.0:
            # a server (or a proxy) that ends every watch at once must not be asked in a tight loop
            self._stop.wait(1.0)

    def _list(self) -> None:
        query = dict(self._query)
        if not self.synced.is_set() and self._cached:
            # from the server's memory, not from etcd: all agents begin at once. It may come as one page
            query["resourceVersion"] = "0"
        self._plan.begin()
        while True:
            try:
                page = self._transport.list(self._path, {**query, "limit": str(self._page)})
            except TooLarge:
                if query.pop("resourceVersion", None):
                    self._cached = False
                    continue
                if self._page == 1:
                    raise
                # objects of a tenant may be a hundred times as large as others
                self._page = max(1, self._page // 8)
                continue
            self._notify(self._plan.page(page.get("items") or ()))
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                break
            query["continue"] = str(metadata["continue"])
            query.pop("resourceVersion", None)  # a continue token contains its version
        self._notify(self._plan.listed(str(metadata.get("resourceVersion") or "")))
        self._plan.worked()

    def _notify(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.change is Change.SYNCED:
                # the receiver of SYNCED may check `synced`
                self.synced.set()
            self._hand(event)

    def _hand(self, event: Event) -> None:
        """Pass one object on; an exception of the listener must not stop the other objects."""
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next event is handed on
            what = key_of(event.object) if event.object else event.change.value
            self._on_error(ApiError(f"{self._path}: cannot take {what}: {error!r}"))


def _stream_s(speaks: bool) -> int:
    most_s = STREAM_S if speaks else QUIET_STREAM_S
    return random.randint(most_s * 9 // 10, most_s)
