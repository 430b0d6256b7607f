"""The page of the controller: what it shows, what it refuses, and that no word of a job is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from kcover_ebpf.controller.board_server import BoardPage
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.output import board_page
from kcover_ebpf.output.board_page import HEADERS, page_of
from kcover_ebpf.output.job_board import BoardJob, BoardNode, Cell, Mark
from tests.unit.support.board_builders import HANG, HUNG, big_jobs, board, incident
from tests.unit.support.report_builders import NOW_S

HOSTILE = "<script>alert(1)</script>'\"&\u202e\x1b[2J"


class Elements(HTMLParser):
    """Names of elements, and of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def asked(
    page: BoardPage, method: str = "GET", path: str = "/"
) -> tuple[str, dict[str, str], bytes]:
    found: list[Any] = []
    content = b"".join(
        page(
            {"REQUEST_METHOD": method, "PATH_INFO": path},
            lambda status, headers: found.extend((status, dict(headers))),
        )
    )
    return found[0], found[1], content


def store() -> ObjectCache:
    return ObjectCache(lambda _: None, wall=lambda: NOW_S)


def test_page_of__shows_the_culprit_what_is_left_of_the_patience_and_the_next_step() -> None:
    text = page_of(board(*HUNG, incidents=[incident(HANG)]), NOW_S)
    assert "1 jobs, 1 with a fault" in text
    assert '<b class="m0" title="1: culprit, no progress for ' in text
    assert "will be restarted in 41 s if nothing moves" in text
    assert "<code>kubectl kcover explain j-1 -n ns</code>" in text


def test_page_of__no_word_of_a_job_is_markup() -> None:
    cell = Cell(HOSTILE, Mark.CULPRIT, 1.0, HOSTILE)
    job = BoardJob(
        HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, nodes=(BoardNode(HOSTILE, (cell,)),)
    )
    plain = replace(job, namespace="a", name="a", kind="a", state="a", text="a", incident="a")
    plain = replace(plain, nodes=(BoardNode("a", (replace(cell, name="a", doing="a"),)),))
    hostile, wanted = Elements(), Elements()
    hostile.feed(text := page_of([job], NOW_S))
    wanted.feed(page_of([plain], NOW_S))
    assert (hostile.names, hostile.attributes) == (wanted.names, wanted.attributes)
    assert "script" not in hostile.names
    assert not {"\u202e", "\x1b"} & set(text)


def test_page_of__nothing_is_run_and_nothing_is_fetched() -> None:
    policy = dict(HEADERS)["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    elements = Elements()
    elements.feed(page_of(big_jobs(), NOW_S))
    assert not elements.names & {"script", "img", "link", "iframe", "form", "a"}
    assert not elements.attributes & {"src", "href", "style", "onclick"}


def test_page_of__what_is_too_much_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_page, "MOST_JOB_CELLS", 100)
    text = page_of(big_jobs(), NOW_S)
    assert "and 900 more ranks" in text
    assert len(re.findall('class="m2" title', text)) < 110
    monkeypatch.setattr(board_page, "MOST_JOBS", 3)
    assert "and 8 more jobs" in page_of(big_jobs(), NOW_S)


def test_page_of__ten_thousand_ranks_are_less_than_two_megabytes() -> None:
    cells = tuple(Cell(str(number), Mark.WAITS, 9.0, "futex") for number in range(8))
    nodes = tuple(BoardNode(f"node-{number}", cells) for number in range(1250))
    jobs = [
        BoardJob("ml", f"j{at}", "Job", "Open", "x", "i", nodes=nodes[at::4]) for at in range(4)
    ]
    assert len(page_of(jobs, NOW_S)) < 2_000_000


def test_board_page__is_made_once_a_second_and_only_read() -> None:
    now_s, made = [0.0], list[int]()
    page = BoardPage(store(), lambda: now_s[0])
    status, headers, content = asked(page)
    assert (status, b"0 jobs, 0 with a fault" in content) == ("200 OK", True)
    assert HEADERS[1] in headers.items()

    def make() -> bytes:
        made.append(1)
        return b"new"

    page._made = make  # type: ignore[method-assign]
    assert asked(page)[2] == content
    now_s[0] = 1.0
    assert (asked(page)[2], asked(page)[2], len(made)) == (b"new", b"new", 1)
    assert asked(page, "HEAD")[2] == b""
    assert asked(page, "POST")[0].startswith("405")
    assert asked(page, path="/metrics")[0].startswith("404")
