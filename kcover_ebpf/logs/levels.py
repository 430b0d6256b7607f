"""The severity of a line by its own words: its logger's level, and whether the program continues.

Pure. The author of a line knows best how serious it is. A failed optional import, a retry, or an address that does
not resolve at once are not errors of a job, whatever error class the line quotes.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import re2


class LogLevel(IntEnum):
    """Levels with the numbers of Python's logging and the names of most loggers."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    FATAL = 50


_WORDS = {
    "trace": LogLevel.DEBUG,
    "debug": LogLevel.DEBUG,
    "verbose": LogLevel.DEBUG,
    "diag": LogLevel.DEBUG,
    "info": LogLevel.INFO,
    "information": LogLevel.INFO,
    "informational": LogLevel.INFO,
    "notice": LogLevel.INFO,
    "default": LogLevel.INFO,
    "success": LogLevel.INFO,
    "warn": LogLevel.WARNING,
    "warning": LogLevel.WARNING,
    "err": LogLevel.ERROR,
    "error": LogLevel.ERROR,
    "severe": LogLevel.ERROR,
    "exception": LogLevel.ERROR,
    "fatal": LogLevel.FATAL,
    "critical": LogLevel.FATAL,
    "crit": LogLevel.FATAL,
    "alert": LogLevel.FATAL,
    "emerg": LogLevel.FATAL,
    "emergency": LogLevel.FATAL,
    "panic": LogLevel.FATAL,
    "dpanic": LogLevel.FATAL,
}
_LETTERS = {
    "V": LogLevel.DEBUG,
    "D": LogLevel.DEBUG,
    "I": LogLevel.INFO,
    "W": LogLevel.WARNING,
    "E": LogLevel.ERROR,
    "C": LogLevel.FATAL,
    "F": LogLevel.FATAL,
}
_HEAD_CHARS = 300
"""Libraries put their level within this many characters; the rest is the message."""
# NCCL's WARN is its word for an error, and so is libfabric's <warn> (fabric(7): the level of errors). A class of
# Python's warnings is printed as an error's is.
_IN_TEXT = re.compile(
    r"\b(?:[A-Z]{1,2}CCL|CCOM) (?P<nccl>INFO|TRACE|VERSION)\b|<(?P<libfabric>info|debug|trace)> "
    r"|\bUCX  ?(?P<ucx>WARN|DIAG|INFO|DEBUG|TRACE)\b"
    r"|^(?:\S{1,200}:\d{1,7}: )?(?P<python>[A-Za-z_.]{0,80}Warning): "
)
# Text that a program says it read or produced is data, whatever it quotes.
_QUOTES = re.compile(
    r"(?i:\W{0,4}(?:model |sample |user |generated )?(?:prompt|question|answer|sample|text|input|output|completion"
    r"|response|instruction|generation|caption|document|query|content)s?(?: ?#?\d{1,9}| ?\[\d{1,9}\])?[\"']? ?[:=] ?)"
)
# Advice, conditions and questions describe what may happen, not what has happened.
_ADVICE = re.compile(
    r"(?i:\W{0,6}(?:tip|hint|faq|example|q|user|assistant|human|docs?|help|see also) {0,2}[:!]"
    r"|\W{0,6}(?:to|in order to) (?:avoid|prevent|fix|resolve|debug|diagnose|work around|handle|recover from)\b"
    r"|\W{0,6}(?:if|when|whenever|in case) (?:you|we|there|this|your|of|an?|the|it|any)\b"
    r"|\W{0,6}(?:why|how|what|when) (?:do|does|to|is|are|should|can)\b)"
)
# Program text is not what the program does: commands that a shell prints, code, a definition.
_CODE = re.compile(
    r" {0,80}(?:\+{1,8} \S|\#(?:ifn?def|define|include)\b|from [\w.]{1,100} import \S"
    r"|import [\w.]{1,100}(?: as \w{1,80})?$"
    r"|(?:def|class|except|elif|catch)\b.{0,400}[:{]$|raise [\w.]{1,100}(?:\(|$)|throw [\w.:]{1,100}\("
    r"|[A-Za-z_][\w.]{0,100} {0,8}= {0,8}(?:0x)?[\da-f]{1,16}[,;]?$"
    r"|[\w./-]{1,200}::[\w\[\]:.-]{1,200} (?:PASSED|FAILED|SKIPPED|XFAIL|ERROR)\b)"
)
_DENIED = re.compile(
    r"(?i:\b(?:no|without) (?:\w{1,20} )?|(?:\b(?:not|never)|n't) (?:been |being |an? |any |yet )?)[\"'`]?$"
)
_DENIED_CHARS = 40
_ATTEMPT = re.compile(
    r"(?i:\b(?:attempt|try|retry|retries)) {0,2}#?\(?(\d{1,4}) ?(?:/|of|out of) ?(\d{1,4})\b"
)
_CONTINUES = (
    r"(?i:\b(?:retrying|will (?:be )?(?:retr(?:y|ied)|reconnect|try again)|trying again|reconnecting"
    r"|falling back|fall(?:s|ing)? ?back to|continuing without|will be (?:skipped|ignored)"
    r"|skipp(?:ing|ed)|ignor(?:ing|ed)|this is (?:harmless|expected)|safely ignored?"
    r"|can be (?:safely )?ignored|(?:using|trying) .{1,60} instead|recovered from)\b)"
    # the best value so far is infinite until there is one
    r"|(?i:\b(?:best|min|minimum|lowest|initial)[ _](?:\w{1,20}[ _])?(?:loss|ppl|perplexity)\b\W{1,4}inf)"
    r"|\bException ignored in\b|\bretry in \d|[^ 0] retries left\b|\d0 retries left\b"
)
_ATTEMPTED = r"(?i:\b(?:attempt|try|retry|retries)\b)"
_DENIES = r"(?i:\b(?:no|not|never|without)\b|n't)"


@lru_cache(maxsize=1)
def _signs() -> re2.Set:
    """All signs of a level in one pass of RE2, numbered as in `_SIGNS`; most messages contain none."""
    made = re2.Set.SearchSet()
    for sign in _SIGNS:
        made.Add(sign)
    made.Compile()
    return made


_SIGNS = (
    *(rf"\A(?:{pattern.pattern})" for pattern in (_QUOTES, _ADVICE, _CODE)),
    _IN_TEXT.pattern,
    _CONTINUES,
    _ATTEMPTED,
    _DENIES,
)
_NO_REPORT = frozenset([0, 1, 2])
_STATED, _CONTINUED, _TRIED, _DENIED_WORD = 3, 4, 5, 6


@lru_cache(maxsize=2)
def _found(text: str) -> frozenset[int]:
    """The signs in a message.

    For text beyond ASCII, where RE2 knows fewer letters, all signs that need Python's patterns.
    """
    found = frozenset(_signs().Match(text) or ())
    return found if text.isascii() else found | _NO_REPORT | {_STATED}


def of_word(word: str) -> LogLevel | None:
    """The level that a logger's word names; None for any other word."""
    return _WORDS.get(word.strip().lower())


def of_letter(letter: str) -> LogLevel | None:
    """The level of the letter with which glog, absl and Ray begin a line; None for any other."""
    return _LETTERS.get(letter)


def of_number(number: float) -> LogLevel | None:
    """The level of a number of Python's logging or pino; None for any other."""
    # pino and bunyan: 30 info, 40 warn, 50 error, 60 fatal; Python's numbers come with the words
    if number < 10 or number > 60:
        return None
    return {
        1: LogLevel.DEBUG,
        2: LogLevel.DEBUG,
        3: LogLevel.INFO,
        4: LogLevel.WARNING,
        5: LogLevel.ERROR,
    }.get(int(number // 10), LogLevel.FATAL)


def in_text(text: str) -> LogLevel | None:
    """The level that a message states itself; None if it states none."""
    if not reports(text):
        return LogLevel.INFO
    if _STATED not in _found(text):
        return None
    match = _IN_TEXT.search(text, 0, _HEAD_CHARS)
    if match is None:
        return None
    if match["python"] is not None:
        return LogLevel.WARNING
    return of_word(match["nccl"] or match["libfabric"] or match["ucx"])


def reports(text: str) -> bool:
    """False for data, advice and code: such a message does not report that something happened."""
    if not _NO_REPORT & _found(text):
        return True
    return not (_QUOTES.match(text) or _ADVICE.match(text) or _CODE.match(text))


def denied(text: str, start: int) -> bool:
    """True if the words in front of `start` say that the event there did not happen."""
    return _DENIED.search(text[max(0, start - _DENIED_CHARS) : start]) is not None


def mild_words(text: str) -> tuple[bool, bool]:
    """(program continues without it or tries again, message may deny something)."""
    found = _found(text)
    is_attempt = _TRIED in found and any(
        int(number) < int(of) for number, of in _ATTEMPT.findall(text)
    )
    return _CONTINUED in found or is_attempt, _DENIED_WORD in found
