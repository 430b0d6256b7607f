r"""Converts the bytes of a log, in blocks of any size, to the lines that programs and the kernel printed.

Pure. It is the only step before all rules and the search for tracebacks. It handles encodings (UTF-16, zero bytes),
the journal's export format, multi-line records, split lines of a container runtime, progress bars, JSON records
with escaped line ends, and colours.

The heads of messages stay: `lines.parse` removes and evaluates them where a line matters. Lines keep their numbers,
because the output has exactly as many `\n` as the log. If one line of the log contains several, they end with `\r`.
"""

from __future__ import annotations

import codecs
import re

import re2

from kcover_ebpf.logs import json_records, spread_records
from kcover_ebpf.logs.journal_export import BEGINS, JournalExport
from kcover_ebpf.logs.partial_lines import PartialLines
from kcover_ebpf.logs.spread_records import HEAD_BYTES, SpreadRecords

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_HEAD_BYTES = max(len(BEGINS), 12)
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\r\n]{0,2048}(?:\x07|\x1b\\)|[ -/]{0,4}[0-Z\\^-~])"
)
"""ECMA-48 control sequences (colours, cursor), terminal titles and links (OSC), and two-character
escapes."""


def _compiled(pattern: bytes) -> re2._Regexp[bytes]:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    return re2.compile(pattern, options=options)


_RECORD = _compiled(
    rb'(?m)^[^{\n\r]{0,200}\{"[^\n\r]*(?:\\|\[ ?\d|"(?:exc|stack|traceback|@x|error)[^\n\r]*)[^\n\r]*\}\r?$'
)
"""A line with a JSON object that has an escape, a message as a list of bytes, or more than a
message; other records are parsed only where they matter."""


class NormalLines:
    """Takes a log block by block, in order. Keeps a bounded amount: the beginnings of a few lines."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        """The first bytes of the log, until the encoding is known; None afterwards."""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._export: JournalExport | SpreadRecords | None = None
        self._lines = PartialLines()

    def skip(self) -> None:
        """Bytes are missing: the next block begins in the middle of a line."""
        self._head = None
        self._lines.skip()

    def feed(self, block: bytes) -> bytes:
        r"""The lines that end in this block, normalised; each part of a line ends with `\r` or `\n`."""
        if self._head is not None:
            self._head += block
            is_line = b"\n" in self._head or len(self._head) >= HEAD_BYTES
            if len(self._head) < _HEAD_BYTES or not is_line:
                return b""
            block, self._head = self._begun(self._head), None
        return self._normal(self._lines.whole(self._decoded(block)))

    def finish(self) -> bytes:
        """The rest at the end of the log: a last line without its line end."""
        made = b""
        if self._head:
            block, self._head = self._begun(self._head), None
            made = self._normal(self._lines.whole(self._decoded(block)))
        last = self._export.finish() if self._export is not None else b""
        return made + self._normal(self._lines.whole(last) + self._lines.finish())

    def _begun(self, head: bytes) -> bytes:
        for mark, name in _MARKS.items():
            if head.startswith(mark):
                self._decoder = codecs.getincrementaldecoder(name)("replace")
                return head[len(mark) :]
        head = head.removeprefix(codecs.BOM_UTF8)
        self._export = (
            JournalExport() if head.startswith(BEGINS) else spread_records.begins(head[:HEAD_BYTES])
        )
        return head

    def _decoded(self, block: bytes) -> bytes:
        if self._decoder is not None:
            return self._decoder.decode(block).encode("utf-8", "replace")
        if self._export is not None:
            return self._export.feed(block)
        # UTF-16 without a byte order mark, or binary: an ASCII letter is itself next to a zero byte
        return block.replace(b"\0", b"") if b"\0" in block else block

    def _normal(self, block: bytes) -> bytes:
        if b'{"' in block:
            block = _records_expanded(block)
        return _ESCAPE.sub(b"", block) if b"\x1b" in block else block


def normal(log: bytes) -> bytes:
    """All lines of a complete log, normalised at once."""
    lines = NormalLines()
    return lines.feed(log) + lines.finish()


def _records_expanded(block: bytes) -> bytes:
    made: list[bytes] = []
    position = 0
    while (match := _RECORD.search(block, position)) is not None:
        start, end = match.start(), match.end()
        made.append(block[position:start])
        made.append(_record_expanded(block[start:end]))
        position = end
        if end == start:  # pragma: no cover - the pattern is never empty
            break
    return b"".join([*made, block[position:]]) if made else block


def _record_expanded(line: bytes) -> bytes:
    at = line.index(b'{"')
    head, text = line[:at], line[at:].rstrip(b"\r")
    if len(text) > json_records.MOST_BYTES:
        return line
    found = json_records.plain(text.decode("utf-8", "replace"))
    if not found:
        return line if found is None else b""
    return b"\r".join(head + part.encode("utf-8", "replace") for part in found)
