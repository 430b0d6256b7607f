"""Joins records that are spread over several lines to one line each.

Pure. `journalctl -o json-pretty` and `dmesg --json` (util-linux, sys-utils/dmesg.c) write JSON with one member per
line. `journalctl -o verbose` writes a line with time and cursor, followed by ` NAME=TEXT` for each field.
"""

from __future__ import annotations

import json
import re

from kcover_ebpf.logs import json_records

_BEGINS_JSON = re.compile(rb"\s{0,8}\{\r?\n\s{0,8}\"")
_BEGINS_VERBOSE = re.compile(
    rb"\w{3} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9} [A-Z+0-9:-]{1,8} \[s=[0-9a-f]{1,64};"
)
HEAD_BYTES = 48
"""Bytes at the beginning of a log that show whether its records are spread."""
_FIELD = re.compile(rb"\s{1,8}([A-Z0-9_]{1,64})=(.*)", re.DOTALL)
_MOST_BYTES = 64 << 10
"""Most bytes of one record; longer ones are dropped."""


def begins(head: bytes) -> SpreadRecords | None:
    """The reader of a log that begins like this; None if records are lines."""
    if _BEGINS_JSON.match(head):
        return SpreadRecords(is_json=True)
    return SpreadRecords(is_json=False) if _BEGINS_VERBOSE.match(head) else None


class SpreadRecords:
    """Takes a log block by block. Keeps one record, bounded."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._rest = b""
        self._record: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> bytes:
        """The records that end in this block, each in place of its last line, so that lines keep their numbers."""
        *lines, rest = (self._rest + block).split(b"\n")
        self._rest = rest[:_MOST_BYTES]
        return b"".join(self._take(line) for line in lines)

    def finish(self) -> bytes:
        """The last record, if nothing follows it."""
        last = self._take(self._rest) if self._rest else b""
        self._rest = b""
        return last + self._ended()

    def _take(self, line: bytes) -> bytes:
        word = line.strip()
        if self._is_json:
            made = self._ended() if word.startswith(b"}") else b""
            if word.startswith(b"{") and word.removesuffix(b",").endswith(b"}"):
                self._record = [word.removesuffix(b",")[1:-1]]
                made = self._ended()
            elif word.endswith(b"{"):
                self._record, self._size = [], 0
            elif not word.startswith((b"}", b"]")):
                self._keep(line)
        else:
            made = b"" if _FIELD.match(line) else self._ended()
            self._keep(line)
        return made + b"\n"

    def _keep(self, line: bytes) -> None:
        self._size += len(line)
        if self._size <= _MOST_BYTES:
            self._record.append(line)

    def _ended(self) -> bytes:
        record, self._record, self._size = self._record, [], 0
        fields = _members(record) if self._is_json else _fields(record)
        return "\r".join(json_records.of_kernel_or_journal(fields) or []).encode("utf-8", "replace")


def _members(record: list[bytes]) -> dict[str, object]:
    text = b"{" + b"\n".join(record).strip().removesuffix(b",") + b"}"
    try:
        found = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _fields(record: list[bytes]) -> dict[str, object]:
    pairs = (match.groups() for line in record if (match := _FIELD.match(line)) is not None)
    return {name.decode(): text.decode("utf-8", "replace") for name, text in pairs}
