"""How serious a line is by its own words: the level that its logger wrote, and whether the program goes on. Pure.

Who writes a line knows best how serious it is: an optional import that failed, a retry, an address that did not resolve
at once are no errors of a job, whatever class of error they quote.
"""

from __future__ import annotations

import re
from enum import IntEnum


class Level(IntEnum):
    """As Python's logging numbers them, and most other loggers name them."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    FATAL = 50


_WORDS = {
    "trace": Level.DEBUG,
    "debug": Level.DEBUG,
    "verbose": Level.DEBUG,
    "diag": Level.DEBUG,
    "info": Level.INFO,
    "information": Level.INFO,
    "informational": Level.INFO,
    "notice": Level.INFO,
    "default": Level.INFO,
    "success": Level.INFO,
    "warn": Level.WARNING,
    "warning": Level.WARNING,
    "err": Level.ERROR,
    "error": Level.ERROR,
    "severe": Level.ERROR,
    "exception": Level.ERROR,
    "fatal": Level.FATAL,
    "critical": Level.FATAL,
    "crit": Level.FATAL,
    "alert": Level.FATAL,
    "emerg": Level.FATAL,
    "emergency": Level.FATAL,
    "panic": Level.FATAL,
    "dpanic": Level.FATAL,
}
_LETTERS = {
    "V": Level.DEBUG,
    "D": Level.DEBUG,
    "I": Level.INFO,
    "W": Level.WARNING,
    "E": Level.ERROR,
    "C": Level.FATAL,
    "F": Level.FATAL,
}
_HEAD_CHARS = 300
"""Where a library puts its level; what is behind it is the message."""
# NCCL's WARN is its word for an error. A class of Python's warnings stands where an error's would.
_IN_TEXT = re.compile(
    r"\bNCCL (?P<nccl>INFO|TRACE|VERSION)\b|<(?P<libfabric>warn|info|debug|trace)> "
    r"|\bUCX  ?(?P<ucx>WARN|DIAG|INFO|DEBUG|TRACE)\b"
    r"|^(?:\S{1,200}:\d{1,7}: )?(?P<python>[A-Za-z_.]{0,80}Warning): "
)
_ATTEMPT = re.compile(
    r"(?i:\b(?:attempt|try|retry|retries)) {0,2}#?\(?(\d{1,4}) ?(?:/|of|out of) ?(\d{1,4})\b"
)
_GOES_ON = re.compile(
    r"(?i:\b(?:retrying|will (?:be )?(?:retr(?:y|ied)|reconnect|try again)|trying again|falling back|fall(?:s|ing)? ?back to"
    r"|reconnecting|continuing without|will be (?:skipped|ignored)|(?:skipping|ignoring) (?:it|this|the)\b"
    r"|this is (?:harmless|expected)|safely ignored?|can be (?:safely )?ignored|using .{1,60} instead)\b)"
    r"|\bException ignored in\b|\bretry in \d|\bretries left\b(?<!\b0 retries left)"
)


def of_word(word: str) -> Level | None:
    """The level that a logger's word names; None for any other word."""
    return _WORDS.get(word.strip().lower())


def of_letter(letter: str) -> Level | None:
    """The level of the letter that glog, absl and Ray put in front; None for any other."""
    return _LETTERS.get(letter)


def of_number(number: float) -> Level | None:
    """The level of a number as Python's logging or pino count; None for any other."""
    # pino and bunyan: 30 info, 40 warn, 50 error, 60 fatal; Python has the words beside it
    if number < 10 or number > 60:
        return None
    return {1: Level.DEBUG, 2: Level.DEBUG, 3: Level.INFO, 4: Level.WARNING, 5: Level.ERROR}.get(
        int(number // 10), Level.FATAL
    )


def in_text(text: str) -> Level | None:
    """The level that a message states itself; None where it states none."""
    match = _IN_TEXT.search(text, 0, _HEAD_CHARS)
    if match is None:
        return None
    if match["python"] is not None:
        return Level.WARNING
    return of_word(match["nccl"] or match["libfabric"] or match["ucx"])


def goes_on(text: str) -> bool:
    """True if a message says that the program does without, or tries again."""
    if any(int(number) < int(of) for number, of in _ATTEMPT.findall(text)):
        return True
    return _GOES_ON.search(text) is not None
