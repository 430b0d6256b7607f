"""Prose of the pages is wrapped at 100 columns; everything else stays as it is."""

import pytest

from tools.docs.wrap import wrapped

WORDS = "word " * 30
TWO_LINES = ("word " * 20).strip() + "\n" + ("word " * 10).strip()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WORDS, TWO_LINES),
        ("a\nb\n\nc", "a b\n\nc"),
        (f"- {WORDS}", "- " + ("word " * 19).strip() + "\n  " + ("word " * 11).strip()),
        ("- a\n  b\n- c", "- a b\n- c"),
        ("1. a\n   b\n\n   c\n   d", "1. a b\n\n   c d"),
        ("- a\n  - b\n    c", "- a\n  - b c"),
        ("a  \nb", "a  \nb"),
        (f"{'x' * 98} - y", f"{'x' * 98} -\ny"),
        (f"{'x' * 90} `a b c d e f`", f"{'x' * 90}\n`a b c d e f`"),
        (f"{'x' * 95} [a b](c.md)", f"{'x' * 95} [a\nb](c.md)"),
    ],
    ids=[
        "a paragraph",
        "lines are joined, paragraphs are not",
        "an item",
        "items are not joined",
        "a paragraph in an item",
        "an item in an item",
        "a line break by two spaces",
        "no line begins with a marker",
        "code is not broken",
        "the text of a link is, its target is not",
    ],
)
def test_wrapped(text: str, found: str) -> None:
    assert wrapped(text) == found
    assert wrapped(found) == found


@pytest.mark.parametrize(
    "text",
    [
        f"# {WORDS}",
        f"| {WORDS} |\n|---|",
        f"```\n{WORDS}\n\n{WORDS}\n```",
        f"a\n\n    {WORDS}",
        f"<!-- {WORDS}\nb -->",
        f"<!-- {WORDS} -->",
        f"> {WORDS}",
        f"- a\n\n  | {WORDS} |",
        f"![{WORDS}](a.svg)",
    ],
    ids=[
        "heading",
        "table",
        "fence",
        "code",
        "comment",
        "one line",
        "quote",
        "in an item",
        "image",
    ],
)
def test_wrapped__what_is_no_prose_stays(text: str) -> None:
    assert wrapped(text) == text
