"""One RE2 search for lines that any of many patterns may match, over blocks of UTF-8.

Pure. A pattern is written for a message, but a block contains complete lines with prefixes. So the search uses the
patterns without their anchors, and no match is longer than a line: if a pattern matches a message, the search
matches its line. Each line found must still be tested with the pattern itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import re2

_MEMORY = 64 << 20
"""Bytes that RE2 may use for the automaton of all patterns; that of the shipped rules takes about 1 MiB."""
_PARTS = re.compile(
    r"(?P<quoted>\\Q.*?(?:(?P<end>\\E)|\Z))"
    r"|\\[pP]\{[^}]*\}"
    r"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
    r"|(?P<anchor>\\[Az]|[\^$])"
    r"|\\."
    r"|[^\\\[^$]+",
    re.DOTALL,
)
r"""Parts of RE2's syntax: only outside \Q...\E, \p{^...} and classes are ^, $, \A and \z anchors."""


def compiled(patterns: Iterable[str]) -> re2._Regexp[bytes]:
    """The search for any of these patterns, each of which is valid; `ValueError` if RE2 refuses to combine them."""
    return _compiled(_joined(patterns))


def test(patterns: Iterable[str]) -> re2.Set:
    """Whether any of these patterns may match a line; faster than the search, which also says where."""
    return _test(_joined(patterns))


def _joined(patterns: Iterable[str]) -> str:
    return "|".join(f"(?:{_unanchored(pattern)})" for pattern in patterns)


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_nl = (
        True  # otherwise [^x] and \s would match across lines, and each search would take longer
    )
    options.never_capture = True
    return options


@lru_cache(maxsize=8)
def _test(joined: str) -> re2.Set:
    made = re2.Set.SearchSet(_options())
    made.Add(joined.encode())
    made.Compile()
    return made


@lru_cache(maxsize=8)
def _compiled(joined: str) -> re2._Regexp[bytes]:
    options = _options()
    try:
        return re2.compile(joined.encode(), options=options)
    except re2.error as error:
        raise ValueError(words_of(error)) from error


def words_of(error: re2.error) -> str:
    """RE2's reason for refusing a pattern."""
    words = error.args[0]
    return words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)


def whole_utf8(block: bytes) -> bytes:
    """The block as it is after decoding with "replace", because RE2 matches only bytes that are UTF-8."""
    try:
        block.decode()
    except UnicodeDecodeError:
        return block.decode("utf-8", "replace").encode()
    return block


@lru_cache(maxsize=4096)
def _unanchored(pattern: str) -> str:
    return _PARTS.sub(_without_anchor, pattern)


def _without_anchor(part: re.Match[str]) -> str:
    if part["anchor"]:
        return "(?:)"  # not the empty text, because it may be repeated
    # RE2 accepts \Q without \E, which would quote the patterns after it
    return f"{part[0]}\\E" if part["quoted"] and not part["end"] else part[0]
