"""List and watch: what is reported, where a watch begins again, and how long it waits."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kcover_ebpf.errors import ApiError, Gone, TooLarge, Unreachable
from kcover_ebpf.kube.reflector import Change, Event, ListWatchState, Reflector
from kcover_ebpf.tunables.kube import STREAM_SILENT_S


def item(name: str, version: int = 1, uid: str | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid or f"u-{name}", "resourceVersion": str(version)}}


def listed(
    list_watch_state: ListWatchState, version: str, *pages: list[dict[str, Any]]
) -> Iterator[Event]:
    list_watch_state.begin()
    for other_page in pages:
        yield from list_watch_state.page(other_page)
    yield from list_watch_state.listed(version)


def names(events: Iterator[Event]) -> list[tuple[Change, str]]:
    return [(event.change, event.object.get("metadata", {}).get("name", "")) for event in events]


def test_list_watch_state__a_first_list_reports_everything() -> None:
    plan = ListWatchState()
    reported = names(listed(plan, "7", [item("a")], [item("b")]))
    assert reported == [(Change.SET, "a"), (Change.SET, "b"), (Change.SYNCED, "")]
    assert plan.version == "7"


def test_list_watch_state__a_second_list_reports_the_difference() -> None:
    plan = ListWatchState()
    list(listed(plan, "7", [item("a"), item("b")], [item("c")]))
    reported = names(listed(plan, "9", [item("a"), item("b", 8)]))
    assert reported == [(Change.SET, "b"), (Change.GONE, "c"), (Change.SYNCED, "")]


def test_list_watch_state__a_pod_of_the_same_name_is_another_one() -> None:
    plan = ListWatchState()
    list(listed(plan, "1", [item("a", 1, "old")]))
    reported = names(listed(plan, "6", [item("a", 5, "new")]))
    assert reported == [(Change.GONE, "a"), (Change.SET, "a"), (Change.SYNCED, "")]


def test_list_watch_state__a_list_that_was_cut_off_reports_the_rest_when_it_comes_whole() -> None:
    plan = ListWatchState()
    list(listed(plan, "1", [item("a"), item("b")]))
    plan.begin()
    assert names(plan.page([item("b", 5), item("c", 6)])) == [(Change.SET, "b"), (Change.SET, "c")]
    reported = names(listed(plan, "9", [item("b", 5), item("d", 7)]))
    assert reported == [
        (Change.SET, "d"),
        (Change.GONE, "a"),
        (Change.GONE, "c"),
        (Change.SYNCED, ""),
    ]


def test_list_watch_state__a_name_that_returned_while_it_was_not_watched_goes_before_it_comes() -> (
    None
):
    plan = ListWatchState()
    list(listed(plan, "1", [item("a", 1, "old")]))
    plan.reported({"type": "DELETED", "object": item("a", 2, "old")})
    plan.reported({"type": "ADDED", "object": item("a", 3, "new")})
    assert names(listed(plan, "4", [item("a", 3, "new")])) == [(Change.SYNCED, "")]


def test_list_watch_state__a_watch_moves_on() -> None:
    plan = ListWatchState()
    list(listed(plan, "1"))
    assert plan.reported({"type": "ADDED", "object": item("a", 2)}) == Event(
        Change.SET, item("a", 2)
    )
    assert plan.reported({"type": "MODIFIED", "object": item("a", 3)}) == Event(
        Change.SET, item("a", 3)
    )
    assert plan.reported({"type": "BOOKMARK", "object": item("", 9)}) is None
    assert plan.version == "9"
    assert plan.reported({"type": "DELETED", "object": item("a", 10)}) == Event(
        Change.GONE, item("a", 10)
    )
    # what was reported as gone is not reported again
    assert names(listed(plan, "11")) == [(Change.SYNCED, "")]


@pytest.mark.parametrize(
    "raw", [{}, {"type": "ADDED"}, {"type": "NEW", "object": {}}, {"object": 5}]
)
def test_list_watch_state__a_line_that_says_nothing(raw: dict[str, Any]) -> None:
    assert ListWatchState().reported(raw) is None


def test_list_watch_state__history_that_is_gone_is_listed_again_at_once_but_not_in_a_loop() -> None:
    plan = ListWatchState()
    list(listed(plan, "1"))
    with pytest.raises(Gone) as caught:
        plan.reported({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    assert plan.version is None
    assert plan.failed(caught.value) == 0.0
    assert plan.failed(caught.value) > 0.0


def test_list_watch_state__after_another_error_a_watch_continues_where_it_was() -> None:
    plan = ListWatchState()
    list(listed(plan, "5"))
    with pytest.raises(ApiError) as caught:
        plan.reported({"type": "ERROR", "object": {"code": 500, "message": "oh"}})
    plan.failed(caught.value)
    assert plan.version == "5"


def test_list_watch_state__the_wait_doubles_up_to_a_limit_and_begins_anew_after_success() -> None:
    plan = ListWatchState()
    waits = [plan.failed(Unreachable("no")) for _ in range(9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    plan.worked()
    assert plan.failed(Unreachable("no")) == 0.5
    assert plan.failed(Unreachable("busy", 429, 60.0)) == 60.0


class FakeTransport:
    """A transport that plays lists and streams, then says that it is done."""

    def __init__(self, pages: list[Any], streams: list[Any]) -> None:
        self.pages, self.streams = pages, streams
        self.asked: list[Mapping[str, str]] = []
        self.lengths_s: list[int] = []
        self.done, self.over = threading.Event(), threading.Event()

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.asked.append(dict(query or {}))
        page = self.pages.pop(0)
        if isinstance(page, ApiError):
            raise page
        return dict(page)

    def stream(
        self, path: str, query: Mapping[str, str], timeout_s: int
    ) -> Iterator[dict[str, Any]]:
        self.asked.append(dict(query))
        self.lengths_s.append(timeout_s)
        if not self.streams:
            self.done.set()
            self.over.wait(60)
            return
        for raw in self.streams.pop(0):
            if isinstance(raw, ApiError):
                raise raw
            yield raw


def page(version: str, *items: dict[str, Any], more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}


def test_reflector__a_whole_life() -> None:
    transport = FakeTransport(
        [page("3", item("a"), more="x"), page("3", item("b")), page("20", item("b"), item("c"))],
        [
            [{"type": "ADDED", "object": item("d", 5)}, Unreachable("cut")],
            [{"type": "ERROR", "object": {"code": 410}}],
        ],
    )
    reported: list[tuple[Change, str]] = []
    errors: list[ApiError] = []

    def on_event(event: Event) -> None:
        reported.append((event.change, event.object.get("metadata", {}).get("name", "")))
        if event.change is Change.SYNCED:
            assert watch.synced.is_set(), "whoever receives an event may ask"

    query = {"fieldSelector": "spec.nodeName=n"}
    watch = Reflector(transport, "/pods", query, on_event, errors.append)
    watch.start()
    assert transport.done.wait(30)
    assert reported == [
        (Change.SET, "a"),
        (Change.SET, "b"),
        (Change.SYNCED, ""),
        (Change.SET, "d"),
        (Change.SET, "c"),
        (Change.GONE, "a"),
        (Change.GONE, "d"),
        (Change.SYNCED, ""),
    ]
    assert [type(error) for error in errors] == [Unreachable, Gone]
    assert all(entry["fieldSelector"] == "spec.nodeName=n" for entry in transport.asked)
    assert [entry.get("continue") for entry in transport.asked[:2]] == [None, "x"]
    watched = [entry["resourceVersion"] for entry in transport.asked if "resourceVersion" in entry]
    assert watched == ["0", "3", "5", "20"], "the first list is of any version"
    watch.stop()
    transport.over.set()


def test_reflector__one_object_that_a_listener_fails_at_keeps_no_other_from_it() -> None:
    transport = FakeTransport(
        [page("3", item("a"), item("bad"), item("b"))],
        [[{"type": "ADDED", "object": item("bad", 4)}, {"type": "ADDED", "object": item("c", 5)}]],
    )
    reported: list[str] = []
    errors: list[ApiError] = []

    def on_event(event: Event) -> None:
        name = event.object.get("metadata", {}).get("name", "")
        if name == "bad":
            raise KeyError("spec")
        reported.append(name)

    watch = Reflector(transport, "/pods", {}, on_event, errors.append)
    watch.start()
    assert transport.done.wait(30)
    assert reported == ["a", "b", "", "c"]
    assert [str(error) for error in errors] == ["/pods: cannot take u-bad: KeyError('spec')"] * 2
    watch.stop()
    transport.over.set()


def test_reflector__no_error_ends_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcover_ebpf.kube.reflector.WATCH_LONGEST_DELAY_S", 0.01)
    transport = FakeTransport([{"items": 7}, page("3", item("a"))], [])

    errors: list[ApiError] = []
    watch = Reflector(transport, "/pods", {}, lambda _: None, errors.append)
    watch.start()
    assert transport.done.wait(30)
    assert watch.is_alive
    assert len(errors) == 1
    watch.stop()
    transport.over.set()


def test_reflector__a_page_that_is_too_large_is_asked_for_in_smaller_ones() -> None:
    transport = FakeTransport(
        [
            TooLarge("all of them, from memory"),
            TooLarge("4 MiB"),
            page("3", item("a"), more="x"),
            TooLarge("4 MiB"),
            page("3", item("b")),
        ],
        [],
    )
    reported: list[str] = []
    errors: list[ApiError] = []
    watch = Reflector(
        transport,
        "/pods",
        {"fieldSelector": "f"},
        lambda event: reported.append(event.object.get("metadata", {}).get("name", "")),
        errors.append,
    )
    watch.start()
    assert transport.done.wait(30)
    assert reported == ["a", "b", ""]
    assert errors == []
    pages = [(entry["limit"], entry.get("continue")) for entry in transport.asked[:5]]
    assert pages == [("500", None), ("500", None), ("62", None), ("62", "x"), ("7", "x")]
    watch.stop()
    transport.over.set()


def test_reflector__a_first_list_comes_from_memory_and_a_later_one_does_not() -> None:
    asked: list[dict[str, str]] = []

    class FakeLists:
        large = False

        def list(self, _path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
            asked.append(dict(query or {}))
            if self.large and "resourceVersion" in asked[-1]:
                raise TooLarge("a page")
            return {"items": [], "metadata": {"resourceVersion": "7"}}

        def stream(self, *_: object) -> Iterator[dict[str, Any]]:
            return iter(())

    made = Reflector(FakeLists(), "/pods", {}, lambda _: None)
    made._list()
    made._list()
    assert [entry.get("resourceVersion") for entry in asked] == ["0", None]
    server, asked[:] = FakeLists(), []
    server.large = True
    Reflector(server, "/pods", {}, lambda _: None)._list()
    assert [(entry.get("resourceVersion"), entry["limit"]) for entry in asked] == [
        ("0", "500"),
        (None, "500"),
    ]


def test_list_watch_state__a_server_says_something_or_not_until_the_opposite_is_seen() -> None:
    plan = ListWatchState()
    assert not plan.speaks
    for was_spoken in (True, False, True):
        plan.ended(was_spoken)
        assert plan.speaks == was_spoken
    plan.failed(Unreachable("cut"))
    assert not plan.speaks, "the next server may be another one"


def test_reflector__only_a_watch_that_is_spoken_in_outlasts_the_silence_that_ends_it() -> None:
    """A server sends no bookmarks of a kind of which it never saw an object: such a watch it ends itself, in time."""
    bookmark = {"type": "BOOKMARK", "object": item("", 9)}
    transport = FakeTransport([page("3")], [[], [bookmark], [bookmark, Unreachable("cut")]])
    errors: list[ApiError] = []
    watch = Reflector(transport, "/pods", {}, lambda _: None, errors.append)
    watch.start()
    assert transport.done.wait(30)
    assert len(errors) == 1
    first_s, second_s, third_s, last_s = transport.lengths_s
    assert third_s > STREAM_SILENT_S
    longest_s = max(first_s, second_s, last_s)
    assert STREAM_SILENT_S - longest_s > 10, "a server that is late counts as dead a while later"
    watch.stop()
    transport.over.set()
