"""Converts the journal's export format to lines as `journalctl` prints them.

Pure. systemd, JOURNAL_EXPORT_FORMATS: a field is `NAME=TEXT` and a newline, or `NAME`, a newline, eight bytes of
length (little-endian), that many bytes and a newline. An empty line ends a record.
"""

from __future__ import annotations

from kcover_ebpf.logs import json_records

BEGINS = b"__CURSOR="
"""The first bytes of every export."""
_KEPT = ("MESSAGE", "_TRANSPORT", "SYSLOG_IDENTIFIER", "_COMM", "_PID", "SYSLOG_PID")
_MOST_BYTES = 64 << 10
"""Most bytes of one field; the rest of a longer one is dropped."""
_LENGTH_BYTES = 8


class JournalExport:
    """Takes an export block by block. Keeps one record, and at most the beginning of each of its fields."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._line_count = 0
        self._skip = 0
        """Bytes of a long binary field that remain to be dropped."""

    def feed(self, block: bytes) -> bytes:
        """The records that end in this block, each in place of its last line, so that lines keep their numbers."""
        made: list[bytes] = []
        data, position = self._rest + block, 0
        while position < len(data):
            if self._skip:
                dropped = min(self._skip, len(data) - position)
                self._line_count += data.count(b"\n", position, position + dropped)
                self._skip -= dropped
                position += dropped
                continue
            taken = self._take(data, position, made)
            if taken == 0:
                break
            position += taken
        rest = data[position:]
        self._rest = rest if len(rest) <= 2 * _MOST_BYTES else rest[:_MOST_BYTES]
        return b"".join(made)

    def finish(self) -> bytes:
        """The last record, if the empty line after it is missing."""
        made: list[bytes] = []
        if self._rest and b"=" in self._rest:
            self.feed(b"\n")
        self._end(made)
        return b"".join(made)

    def _take(self, data: bytes, position: int, made: list[bytes]) -> int:
        """Parse a field or the end of a record; returns the bytes consumed, 0 if more are needed."""
        end = data.find(b"\n", position)
        if end < 0:
            return 0
        line = data[position:end]
        if not line:
            self._line_count += 1
            self._end(made)
            return 1
        name, equals, value = line.partition(b"=")
        if equals:
            self._line_count += 1
            self._note(name, value)
            return end + 1 - position
        start = end + 1 + _LENGTH_BYTES
        if len(data) < start:
            return 0
        size = int.from_bytes(data[end + 1 : start], "little")
        if size > _MOST_BYTES:
            self._line_count += 1 + data.count(b"\n", end + 1, start)
            self._skip = min(size, 1 << 40) + 1
            return start - position
        if len(data) < start + size + 1:
            return 0
        self._line_count += data.count(b"\n", position, start + size + 1)
        self._note(line, data[start : start + size])
        return start + size + 1 - position

    def _note(self, name: bytes, value: bytes) -> None:
        key = name[:64].decode("ascii", "replace")
        if key in _KEPT:
            self._fields[key] = value[:_MOST_BYTES].decode("utf-8", "replace")

    def _end(self, made: list[bytes]) -> None:
        found = json_records.journal(self._fields) if "MESSAGE" in self._fields else []
        if self._line_count:
            made.append(b"\n" * (self._line_count - 1) + "\r".join(found).encode() + b"\n")
        self._fields, self._line_count = {}, 0
