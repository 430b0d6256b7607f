"""The page of an incident in a real headless browser: errors, light and dark, keyboard, paper, contrast, widths."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.cli.report import page_text
from testbed.driver.browser import Browser, browser
from testbed.driver.cluster import until
from tests.unit.support import incident_archives as build

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(300, func_only=True)]
LONG = "x" * 300

CONTRASTS = """
(() => {
  const channels = (text) => {
    const found = text.match(/[\\d.]+/g);
    return found ? found.map(Number) : [0, 0, 0, 0];
  };
  const alpha = (color) => (color.length > 3 ? color[3] : 1);
  const mixed = (over, under, share) => [0, 1, 2].map((i) => over[i] * share + under[i] * (1 - share));
  const light = (color) => {
    const part = (value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(color[0]) + 0.7152 * part(color[1]) + 0.0722 * part(color[2]);
  };
  const back = (element) => {
    const box = element.ownerSVGElement && element.parentElement.querySelector(":scope > rect");
    if (box) return channels(getComputedStyle(box).fill);
    for (let parent = element; parent; parent = parent.parentElement) {
      const color = channels(getComputedStyle(parent).backgroundColor);
      if (alpha(color) > 0) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || element.closest("title, defs") || !element.getClientRects().length) continue;
    if (!element.checkVisibility({ checkOpacity: true })) continue;
    const style = getComputedStyle(element);
    let share = 1;
    for (let parent = element; parent; parent = parent.parentElement) {
      share *= Number(getComputedStyle(parent).opacity);
    }
    const under = back(element);
    const over = channels(element.ownerSVGElement ? style.fill : style.color);
    const [first, second] = [light(mixed(over, under, share * alpha(over))), light(under)];
    const ratio = (Math.max(first, second) + 0.05) / (Math.min(first, second) + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    found.push([text.slice(0, 40), ratio, isLarge ? 3 : 4.5]);
  }
  return found;
})()
"""
"""Of each visible text: (text, ratio, the least that WCAG 2.2 wants at level AA, 1.4.3)."""

FOCUSED = """
(() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  return {
    name: element.tagName + " " + (element.getAttribute("aria-label") || element.textContent.trim().slice(0, 30)),
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    isSeen: box.width > 0 && box.right > 0 && box.bottom > 0 && box.top < innerHeight,
  };
})()
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None
    with browser(program) as found:
        yield found


def usual() -> Archive:
    return build.archive()


def large() -> Archive:
    return build.archive(world=10_000, culprit=4_711)


def hostile() -> Archive:
    return build.archive(text=lambda word: f"<script>{word}</script>\u202e{LONG}")


def empty() -> Archive:
    return replace(build.archive(), parts=(), incident=None)


ARCHIVES = [usual, large, hostile, empty]


def written(archive: Archive, folder: Path) -> Path:
    file = folder / "page.html"
    file.write_text(page_text(archive))
    return file


def wrong(events: list[dict[str, Any]], file: Path) -> list[Any]:
    """What the page reported that it should not: errors, and requests for anything but itself."""
    found: list[Any] = []
    for event in events:
        name, about = event["method"], event.get("params", {})
        if name in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled"}:
            found.append(about)
        elif name == "Log.entryAdded":
            found.append(about["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            url = about["request"]["url"].partition("#")[0]
            found += [url] if url != file.resolve().as_uri() else []
    return found


@pytest.mark.parametrize("make", ARCHIVES)
def test_page__reports_no_error_and_asks_for_nothing(
    page: Browser, make: Any, tmp_path: Path
) -> None:
    file = written(make(), tmp_path)
    for scheme in ("light", "dark"):
        page.media(scheme)
        page.open(file)
        assert page.value("document.querySelector('h1').textContent.length") > 10
        assert wrong(page.events, file) == []
    assert page.value("document.scripts.length") == 0


@pytest.mark.parametrize("kind", ["", "print"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [usual, large, empty])
def test_page__every_text_has_contrast_to_what_is_behind_it(
    page: Browser, make: Any, scheme: str, kind: str, tmp_path: Path
) -> None:
    page.media(scheme, kind)
    page.open(written(make(), tmp_path))
    page.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    found = page.value(CONTRASTS)
    assert len(found) > (100 if make is usual else 10)
    assert [(text, round(ratio, 2)) for text, ratio, least in found if ratio < least] == []


def test_page__light_is_light_and_dark_is_dark(page: Browser, tmp_path: Path) -> None:
    file = written(usual(), tmp_path)
    for scheme, expected in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
        page.media(scheme)
        page.open(file)
        assert page.value("getComputedStyle(document.body).backgroundColor") == expected


def test_page__everything_is_reached_by_the_keyboard_and_shows_that_it_is(
    page: Browser, tmp_path: Path
) -> None:
    page.media()
    page.open(written(usual(), tmp_path))
    count = page.value("document.querySelectorAll('a, summary, [tabindex=\"0\"]').length")
    inside = page.value("document.querySelectorAll('details:not([open]) [tabindex=\"0\"]').length")
    seen = []
    for _ in range(count - inside):
        page.press("Tab")
        seen.append(page.value(FOCUSED))
    assert seen[0]["name"] == "A To what to do next"
    assert [focused["name"] for focused in seen if not focused["isSeen"]] == []
    assert [focused["name"] for focused in seen if focused["outline"] < 2] == []
    assert len({focused["name"] for focused in seen}) > 10
    page.press("Tab")
    assert page.value("document.activeElement.tagName") in {"BODY", "HTML", "A"}


def test_page__the_keyboard_follows_the_first_link_and_opens_a_log(
    page: Browser, tmp_path: Path
) -> None:
    page.media()
    page.open(written(usual(), tmp_path))
    page.press("Tab")
    page.press("Enter")
    assert page.value("location.hash") == "#next"
    for key in ("Enter", " "):
        page.value("document.querySelector('details:not([open]) > summary').focus()")
        page.press(key)
        assert page.value("document.activeElement.parentElement.open") is True


def test_page__what_is_too_wide_is_scrolled_by_the_keyboard(page: Browser, tmp_path: Path) -> None:
    page.media()
    page.open(written(usual(), tmp_path), width=360, height=700)
    wide = "[...document.querySelectorAll('.wide')].find((part) => part.scrollWidth > part.clientWidth)"
    page.value(f"(() => {{ const part = {wide}; part.focus(); }})()")
    for _ in range(3):
        page.press("ArrowRight")
    until(lambda: page.value("document.activeElement.scrollLeft > 0"), "it scrolls")


@pytest.mark.parametrize("make", ARCHIVES)
@pytest.mark.parametrize("width", [320, 390, 1100])
def test_page__is_never_wider_than_the_screen(
    page: Browser, make: Any, width: int, tmp_path: Path
) -> None:
    page.media()
    page.open(written(make(), tmp_path), width=width, height=800)
    assert page.value("document.documentElement.scrollWidth") <= width


def test_page__paper_shows_what_is_folded_on_the_screen(page: Browser, tmp_path: Path) -> None:
    file = written(usual(), tmp_path)
    page.media()
    page.open(file, width=720, height=1000)
    closed = "[...document.querySelectorAll('details:not([open]) > pre')]"
    assert page.value(f"{closed}.length") > 10
    assert page.value(f"{closed}.filter((part) => part.checkVisibility()).length") == 0
    page.media(kind="print")
    assert page.value(f"{closed}.filter((part) => !part.checkVisibility()).length") == 0
    cut = (
        "[...document.querySelectorAll('.tree, pre, .wide')]"
        ".filter((part) => part.scrollHeight > part.clientHeight + 1)"
    )
    assert page.value(f"{cut}.map((part) => part.getAttribute('aria-label') || part.tagName)") == []
    assert page.value("document.documentElement.scrollWidth") <= 720
    printed = page.pdf()
    assert printed.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def test_page__its_structure_is_that_of_a_document(page: Browser, tmp_path: Path) -> None:
    page.media()
    page.open(written(usual(), tmp_path))
    assert page.value("document.documentElement.lang") == "en"
    assert page.value("document.querySelectorAll('main').length") == 1
    levels = page.value(
        "[...document.querySelectorAll('h1,h2,h3')].map((part) => Number(part.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    unnamed = "document.querySelectorAll('[role]:not([aria-label]), th:not([scope])').length"
    assert page.value(unnamed) == 0


def test_page__ten_thousand_ranks_are_few_elements(page: Browser, tmp_path: Path) -> None:
    page.media()
    page.open(written(large(), tmp_path))
    assert page.value("document.getElementsByTagName('*').length") < 5_000
