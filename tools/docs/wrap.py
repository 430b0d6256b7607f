"""Wraps the prose of our pages at 100 columns: `make format` writes it, `make check` compares.

python -m tools.docs.wrap           wraps every page
python -m tools.docs.wrap --check   names those that are not wrapped, and exits 1

Only paragraphs and list items are touched. Tables, code, headings, quotes, comments and HTML stay as they are, and so
do the line breaks that two spaces ask for. Code between backquotes and the targets of links are never broken.
"""

import re
import sys
from collections.abc import Iterator

from tools.docs.links import pages
from tools.pages import keep

WIDTH = 100
ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])(\s+)(?=\S)")
LEFT_ALONE = re.compile(r"\s*(?:[#>|<]|!\[|\[[^]]+\]: )")
"""Headings, quotes, tables, HTML and comments, images, definitions of links."""
FENCE = re.compile(r"\s*(`{3,}|~{3,})")
# A token that would mean something else at the beginning of a line.
MARKER = re.compile(r"(?:[-*+]|\d+[.)]|#+|>.*|\|.*|=+|-+)$")
SPAN = re.compile(r"`+[^`]+`+")
HIDDEN_SPACE = "\0"


def wrapped(text: str) -> str:
    """The page with its prose wrapped; the same again for what is wrapped."""
    return "\n".join(_lines(text.split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    paragraph = _Paragraph()
    fence = comment = ""
    items: list[int] = []  # columns at which the text of the open list items begins
    after_blank = True
    for line in lines:
        if fence or comment:
            yield line
            fence = "" if fence and line.strip().startswith(fence) else fence
            comment = "" if "-->" in line else comment
            continue
        indent = len(line) - len(line.lstrip())
        item = ITEM.match(line)
        if after_blank and line.strip():
            items = [column for column in items if column <= indent]
        is_code = after_blank and indent >= (items[-1] if items else 0) + 4
        if not line.strip() or is_code or LEFT_ALONE.match(line) or FENCE.match(line):
            yield from paragraph.end()
            yield line
            if opened := FENCE.match(line):
                fence = opened[1]
            elif line.lstrip().startswith("<!--") and "-->" not in line:
                comment = "<!--"
            after_blank = not line.strip() or is_code
            continue
        if item:
            yield from paragraph.end()
            items = [column for column in items if column <= len(item[1])] + [item.end()]
            paragraph = _Paragraph(line[: item.end()], " " * item.end())
            paragraph.add(line[item.end() :])
        elif paragraph.is_empty():
            paragraph = _Paragraph(" " * indent, " " * indent)
            paragraph.add(line)
        else:
            paragraph.add(line)
        if line.endswith("  "):
            rest = paragraph.rest
            yield from paragraph.end(hard_break=True)
            paragraph = _Paragraph(rest, rest)
        after_blank = False
    yield from paragraph.end()


class _Paragraph:
    """Text that is wrapped together: `first` begins its first line, `rest` all others."""

    def __init__(self, first: str = "", rest: str = "") -> None:
        self.first, self.rest = first, rest
        self._words: list[str] = []

    def is_empty(self) -> bool:
        return not self._words

    def add(self, line: str) -> None:
        self._words += line.split()

    def end(self, *, hard_break: bool = False) -> Iterator[str]:
        """Its lines; it is empty afterwards."""
        line = self.first
        is_new = True
        for token in _tokens(" ".join(self._words)):
            if not is_new and len(line) + 1 + len(token) > WIDTH:
                yield line
                line, is_new = self.rest, True
            line, is_new = f"{line}{'' if is_new else ' '}{token}", False
        if not is_new:
            yield line + ("  " if hard_break else "")
        self._words = []


def _tokens(text: str) -> Iterator[str]:
    """What may not be broken, in order: words, code, and a marker with the word before it."""
    hidden = SPAN.sub(lambda span: span[0].replace(" ", HIDDEN_SPACE), text)
    held = ""
    for word in hidden.split(" "):
        if held and not MARKER.match(word):
            yield held.replace(HIDDEN_SPACE, " ")
            held = word
        else:
            held = f"{held} {word}" if held else word
    if held:
        yield held.replace(HIDDEN_SPACE, " ")


def main(arguments: list[str]) -> int:
    """Write or compare; the exit code."""
    texts = {page: wrapped(page.read_text()) for page in pages()}
    return keep(texts, arguments, "-m tools.docs.wrap")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
