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
    """The page with its prose wrapped; a wrapped page stays unchanged."""
    return "\n".join(_Page().lines(text.split("\n")))


class _Page:
    """State of a line: inside a fence or comment, in which list items, after a blank line."""

    def __init__(self) -> None:
        self._until = ""  # end marker of the open fence or comment
        self._columns: list[int] = []  # column at which the text of the open list items begins
        self._after_blank = True
        self._paragraph = _Paragraph()

    def lines(self, lines: list[str]) -> Iterator[str]:
        for line in lines:
            if self._until:
                yield line
                self._until = "" if self._until in line else self._until
            elif self._is_left_alone(line):
                yield from self._paragraph.end()
                yield line
            else:
                yield from self._prose(line)
        yield from self._paragraph.end()

    def _is_left_alone(self, line: str) -> bool:
        indent = len(line) - len(line.lstrip())
        if self._after_blank and line.strip():
            self._columns = [column for column in self._columns if column <= indent]
        is_code = self._after_blank and indent >= (self._columns or [0])[-1] + 4
        if fence := FENCE.match(line):
            self._until = fence[1]
        elif line.lstrip().startswith("<!--") and "-->" not in line:
            self._until = "-->"
        if line.strip() and not is_code and not fence and not LEFT_ALONE.match(line):
            return False
        self._after_blank = not line.strip() or is_code
        return True

    def _prose(self, line: str) -> Iterator[str]:
        self._after_blank = False
        if item := ITEM.match(line):
            yield from self._paragraph.end()
            around = [column for column in self._columns if column <= len(item[1])]
            self._columns = [*around, item.end()]
            self._paragraph = _Paragraph(line[: item.end()], " " * item.end())
        elif self._paragraph.is_empty():
            indent = " " * (len(line) - len(line.lstrip()))
            self._paragraph = _Paragraph(indent, indent)
        self._paragraph.add(line[item.end() :] if item else line)
        if line.endswith("  "):
            rest = self._paragraph.rest
            yield from self._paragraph.end(hard_break=True)
            self._paragraph = _Paragraph(rest, rest)


class _Paragraph:
    """Text that is wrapped together: `first` is the prefix of its first line, `rest` of all others."""

    def __init__(self, first: str = "", rest: str = "") -> None:
        self.first, self.rest = first, rest
        self._words: list[str] = []

    def is_empty(self) -> bool:
        return not self._words

    def add(self, line: str) -> None:
        self._words += line.split()

    def end(self, *, hard_break: bool = False) -> Iterator[str]:
        """The wrapped lines; the paragraph is empty afterwards."""
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
    """Unbreakable units, in order: words, code, and a marker with the word before it."""
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
