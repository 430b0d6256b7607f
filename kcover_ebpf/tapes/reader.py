"""Reads a tape from any source: each line is decoded, counted as unknown, or refused by its line number."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader
from typing import IO, Any, cast

from kcover_ebpf.api.json_values import UnknownWord, WrongValue
from kcover_ebpf.errors import UsageError
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.tapes.entries import FACTS, MARKS, MOST_LINE_BYTES, SCHEMA, TAPE, Entry, Header

_GZIP_MAGIC = b"\x1f\x8b"
_ALL_UNKNOWN = "others"
_MOST_KINDS = 64
"""Most names of unknown kinds that are remembered, so that a nonsense tape cannot fill our memory."""


class TapeReader:
    """Reads one tape from beginning to end; raises `UsageError` if it is not a tape."""

    def __init__(self, file: BufferedReader, name: str) -> None:
        """`name`: name of the file, for messages."""
        self._name, self.line = name, 0
        self.skipped: Counter[str] = Counter()
        """Kind -> number of skipped entries, which a newer program wrote."""
        try:
            packed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        except OSError as error:
            raise self.refusal(error.strerror or str(error)) from error
        self._lines: IO[bytes] = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file
        self.header = self._header()

    def __iter__(self) -> Iterator[Entry]:
        """The facts and marks in the order in which they were recorded."""
        while (content := self._next()) is not None:
            entry = self._entry(content)
            if entry is not None:
                yield entry

    def refusal(self, why: str) -> UsageError:
        """The error for a bad tape, with the line number and `why`."""
        return UsageError(f"tape {self._name}, line {self.line}: {why}")

    def _header(self) -> Header:
        content = self._next()
        if content is None:
            raise self.refusal("it is empty")
        if content.get("schema") != SCHEMA:
            raise self.refusal(f"this is not a tape: its first line has no schema {SCHEMA}")
        try:
            header = TAPE.read(Header, content)
            SyscallTable(header.machine)
        except WrongValue as error:
            raise self.refusal(str(error)) from None
        except KeyError:
            raise self.refusal(f"machine {header.machine[:20]!a} is not supported") from None
        return header

    def _next(self) -> dict[str, Any] | None:
        self.line += 1
        line = self._read_line()
        if not line:
            return None
        if not line.endswith(b"\n"):
            why = "it is too long" if len(line) >= MOST_LINE_BYTES else "the tape ends within it"
            raise self.refusal(why)
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            raise self.refusal("it is not JSON") from None
        if not isinstance(content, dict):
            raise self.refusal("it is not a JSON object")
        return content

    def _read_line(self) -> bytes:
        try:
            return self._lines.readline(MOST_LINE_BYTES)
        except EOFError:
            raise self.refusal("the compressed tape is truncated here") from None
        except (OSError, zlib.error) as error:
            raise self.refusal(f"it cannot be read: {error}") from None

    def _entry(self, content: dict[str, Any]) -> Entry | None:
        word, known = content.get("fact"), FACTS
        if word is None:
            word, known = content.get("mark"), MARKS
        if not isinstance(word, str):
            raise self.refusal("it is neither a fact nor a mark")
        if word not in known:
            self._skip(word)
            return None
        try:
            return cast("Entry", TAPE.read(known[word], content))
        except UnknownWord:
            self._skip(word)
            return None
        except WrongValue as error:
            raise self.refusal(f"{word}: {error}") from None

    def _skip(self, kind: str) -> None:
        is_new = kind not in self.skipped and len(self.skipped) >= _MOST_KINDS
        self.skipped[_ALL_UNKNOWN if is_new else kind[:40]] += 1
