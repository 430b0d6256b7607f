"""Converts lines that are one JSON object (structured loggers, Docker, the journal) to plain lines.

Pure. Docker's json-file driver: `{"log": TEXT, "stream": NAME, "time": RFC3339}`. `journalctl -o json`: MESSAGE,
_TRANSPORT, SYSLOG_IDENTIFIER (systemd.journal-fields(7)). `dmesg --json`: an object with a list of records.
Loggers: the keys that python-json-logger, structlog, loguru, zap, zerolog, pino, Logstash and Google Cloud use for
message, level and exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kcover_ebpf.logs import levels
from kcover_ebpf.logs.levels import LogLevel

MOST_BYTES = 64 << 10
"""Most bytes of a record; longer than any line that is read."""
_MOST_LINES = 400
_MESSAGES = ("message", "msg", "log", "text", "event", "body", "short_message", "@m", "MESSAGE")
_LEVELS = ("level", "levelname", "severity", "lvl", "log.level", "loglevel", "@l", "level_name")
_ERRORS = ("error", "err", "error.message")
_TRACES = [
    "exception",
    "exc_info",
    "exc_text",
    "stack",
    "stack_trace",
    "stacktrace",
    "stackTrace",
    "traceback",
    "stack_info",
    "error.stack_trace",
    "@x",
]
_RANKS = ("rank", "global_rank", "RANK", "process_index")
_KERNEL = "kernel"
_NO_TIME = "Jan  1 00:00:00 - "
"""Takes the place of time and host in front of user-space records, so that they read as lines of
`journalctl`."""
_FACILITIES = ("facility", "SYSLOG_FACILITY", "syslog_facility", "fac")
_IDENTS = ("ident", "program", "appname", "app_name", "SYSLOG_IDENTIFIER", "syslog_identifier")
"""Keys with which syslog daemons and shippers name the program that wrote a record."""
_OF_KERNEL = ("kern", _KERNEL, "0")
_DMESG = frozenset(["pri", "fac", "time", "caller", "msg"])
"""Keys of a record of `dmesg --json`; `pri` is facility * 8 + level."""


def _parsed(text: str) -> dict[str, Any] | None:
    """The object; None for a text that is too long or no JSON object."""
    if len(text) > MOST_BYTES:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def plain(text: str) -> list[str] | None:
    """The lines of a record; None for a text that is not a JSON object with a message.

    Each line begins with `[rankN]: ` and the level's name if the record states them, as plain loggers write them. A
    record of the journal becomes a line as `journalctl` prints it, without time and host.
    """
    found = _parsed(text) if text.endswith("}") else None
    if found is None:
        return None
    if isinstance(inner := found.get("jsonPayload"), dict):
        found = inner
    made = of_kernel_or_journal(found)
    return _logger(found) if made is None else made


def of_kernel_or_journal(found: Mapping[str, Any]) -> list[str] | None:
    """The lines of a record of the journal or of `dmesg --json`; None for any other record."""
    if "MESSAGE" in found and ("_TRANSPORT" in found or "__CURSOR" in found):
        return journal(found)
    if isinstance(found.get("dmesg"), list):
        records = [row for row in found["dmesg"] if isinstance(row, dict)]
        return [line for row in records for line in of_kernel_or_journal(row) or []]
    if set(found) <= _DMESG and {"pri", "msg"} <= set(found) and isinstance(found["msg"], str):
        return [_of_dmesg(found)]
    return None


def _of_dmesg(found: Mapping[str, Any]) -> str:
    """The line as `dmesg --raw` prints it, or as `dmesg --decode` if facility and level are words."""
    priority, text = found["pri"], " ".join(found["msg"].split("\n"))
    if isinstance(priority, int) and not isinstance(priority, bool):
        return f"<{priority}>{text}"
    words = found.get("fac"), priority
    if not all(isinstance(word, str) and word.isalnum() and len(word) < 9 for word in words):
        return text
    return f"{words[0]:6}:{words[1]:6}: {text}"


def docker(text: str) -> tuple[str, str, str] | None:
    """(time, stream, text) of a Docker record; the text ends with a newline if complete. None for other texts."""
    found = _parsed(text)
    if found is None:
        return None
    words = tuple(found.get(key) for key in ("time", "stream", "log"))
    if not all(isinstance(word, str) for word in words) or words[1] not in ("stdout", "stderr"):
        return None
    return words  # type: ignore[return-value]


def journal(fields: Mapping[str, Any]) -> list[str]:
    """A record of the journal as lines; empty if it claims to be from the kernel but is not."""
    message = _journal_text(fields.get("MESSAGE"))
    transport = fields.get("_TRANSPORT")
    if transport == _KERNEL:
        head = f"{_KERNEL}: "
    else:
        name = str(fields.get("SYSLOG_IDENTIFIER") or fields.get("_COMM") or "unknown")[:64]
        if name.split("[")[0].strip().rstrip(":") == _KERNEL:
            return []
        pid = fields.get("_PID") or fields.get("SYSLOG_PID") or 0
        head = f"{_NO_TIME}{name}[{pid}]: "
    return [f"{head}{line}" for line in message.splitlines()[:_MOST_LINES]]


def _journal_text(value: object) -> str:
    # unprintable text is encoded as a list of bytes
    if isinstance(value, list):
        numbers = [number for number in value if isinstance(number, int) and 0 <= number < 256]
        return bytes(numbers).decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _logger(found: Mapping[str, Any]) -> list[str] | None:
    message = _first_text(found, _MESSAGES)
    if message is None and isinstance(found.get("record"), dict):
        message = _first_text(found["record"], _MESSAGES)
    if message is None:
        return None
    level = _level(found)
    if level is None and message == found.get("text"):
        # not written by a logger: data, printed unchanged
        return [f"text: {line}" for line in message.splitlines()[:_MOST_LINES]]
    texts = [message]
    texts += [
        word for key in _ERRORS if isinstance(word := found.get(key), str) and word not in message
    ]
    texts += [
        word
        for key in _TRACES
        if isinstance(word := found.get(key), str) and word.strip() and word not in message
    ]
    all_lines = [line for text in texts for line in text.splitlines() if line.strip()]
    if (head := _syslog_head(found)) is not None:
        return [f"{head}{line}" for line in all_lines[:_MOST_LINES]]
    head = f"{level.name}: " if level is not None else ""
    rank = next((found[key] for key in _RANKS if _is_rank(found.get(key))), None)
    head = f"[rank{rank}]: {head}" if rank is not None else head
    return [f"{head}{line}" for line in all_lines[:_MOST_LINES]]


def _syslog_head(found: Mapping[str, Any]) -> str | None:
    """The head that a syslog daemon would have written; None for a record that is not from syslog."""
    facility = next((str(found[key]) for key in _FACILITIES if key in found), None)
    ident = next((word for key in _IDENTS if isinstance(word := found.get(key), str)), None)
    if facility is None and ident != _KERNEL:
        return None
    is_of_kernel = facility is None or facility.lower() in _OF_KERNEL
    return f"{_KERNEL}: " if is_of_kernel else f"{_NO_TIME}{(ident or 'unknown')[:64]}[0]: "


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10_000_000


def _first_text(found: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((word for key in keys if isinstance(word := found.get(key), str)), None)


def _level(found: Mapping[str, Any]) -> LogLevel | None:
    for key in _LEVELS:
        value = found.get(key)
        if isinstance(value, str):
            return levels.of_word(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return levels.of_number(value)
    record = found.get("record")
    if isinstance(record, dict) and isinstance(record.get("level"), dict):
        name = record["level"].get("name")
        return levels.of_word(name) if isinstance(name, str) else None
    return None
