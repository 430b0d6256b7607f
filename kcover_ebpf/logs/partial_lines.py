r"""Cuts blocks at the ends of lines, and joins the pieces that a container runtime makes of a long one. Pure.

CRI container log format (kubernetes/enhancements, keps/sig-node): `TIME STREAM TAGS TEXT`; the first tag is P for a
piece that is continued by the next line of the same stream, F for the last or only one. Pieces of the two streams
alternate as they were written. Docker's records (json-file driver) are turned into such lines first.

A line may hold several texts: a progress bar returns to the beginning of its line each time it is drawn, and what is
printed next follows it. They are handed on as parts of one line, each but the last ended by `\r` instead of `\n`, and
each with what the runtime put in front of the line.
"""

from __future__ import annotations

import re
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.logs import json_records

MOST_LINE_BYTES = 32 << 10
"""What a part of a line has beyond them is dropped: a message that explains a fault is shorter."""
_PIECES = (b" stdout P", b" stderr P")
_STREAMS = (b"stdout", b"stderr")
_DOCKER = b'{"log":"'
_PLAIN_DOCKER = re.compile(
    rb'^\{"log":"([^"\\\n]{0,32768})\\n","stream":"(stdout|stderr)"(?:,"attrs":\{[^}\n]{0,500}\})?,"time":"([^"\\\n]{1,40})"\}$',
    re.MULTILINE,
)
"""A record whose text needs no decoding."""
_ENDS = re.compile(rb"[\r\n]")
_RETURNS = re.compile(rb"\r+")


@dataclass(slots=True)
class _Open:
    """A line of which pieces are missing."""

    head: bytes
    """What the runtime put in front of its first piece."""
    text: bytearray = field(default_factory=bytearray)


class PartialLines:
    """Takes the bytes of one log in order. Keeps at most the beginnings of three lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False
        """The kept beginning of a part has reached its limit: the rest of the part is dropped."""
        self._open: dict[bytes, _Open] = {}
        """Stream -> the line that is joined."""

    def skip(self) -> None:
        """Bytes are missing: what comes next begins in the middle of a line."""
        self._open.clear()
        self._rest, self._is_cut = b"", True

    def whole(self, block: bytes) -> bytes:
        """The lines and parts that end in this block, each whole; as many line ends as the block has."""
        if self._is_cut:
            end = _ENDS.search(block)
            if end is None:
                return b""
            self._is_cut = False
            # the kept beginning ends here
            block = self._rest + block[end.start() :] if self._rest else block[end.end() :]
            self._rest = b""
        lines, newline, rest = (self._rest + block).rpartition(b"\n")
        lines += newline
        if len(rest) > MOST_LINE_BYTES and (drawn := rest.rfind(b"\r", 0, -1)) >= 0:
            lines, rest = lines + rest[: drawn + 1], rest[drawn + 1 :]
        self._rest = rest[:MOST_LINE_BYTES]
        self._is_cut = len(rest) > MOST_LINE_BYTES
        return self._joined(lines)

    def finish(self) -> bytes:
        """What is left when the log ends: a last line without its end, pieces without their last."""
        rest, self._rest = self._rest, b""
        made = self._joined(rest + b"\n") if rest else b""
        return made + b"".join(_parts(*self._closed(stream)) for stream in list(self._open))

    def _closed(self, stream: bytes) -> tuple[bytes, bytes]:
        found_open = self._open.pop(stream)
        return found_open.head, bytes(found_open.text)

    def _joined(self, lines: bytes) -> bytes:
        if _DOCKER in lines:
            lines = _as_cri(lines)
        if self._open or any(piece in lines for piece in _PIECES):
            lines = b"".join(self._with_pieces_joined(lines))
        elif b"\r" in lines:
            lines = _with_returns_split(lines)
        return lines

    def _with_pieces_joined(self, lines: bytes) -> list[bytes]:
        made: list[bytes] = []
        *all_lines, rest = lines.split(b"\n")  # the rest: parts of a line that has not ended
        for line in all_lines:
            time, _, after = line.partition(b" ")
            stream, _, after = after.partition(b" ")
            tags, _, text = after.partition(b" ")
            is_known = stream in _STREAMS
            if is_known and tags[:1] == b"P":
                if stream not in self._open:
                    self._open[stream] = _Open(b"%b %b F " % (time, stream))
                # an empty line in the place of the piece: lines keep their numbers
                made.append(_add(self._open[stream], text) + b"\n")
            elif is_known and stream in self._open and tags[:1] == b"F":
                made.append(_add(self._open[stream], text))
                made.append(_parts(*self._closed(stream)))
            else:
                made.append(_line(line))
        return [*made, rest]


def _add(line_open: _Open, piece: bytes) -> bytes:
    """Add a piece to a line; the parts of the line that it completes."""
    drawn, returned, piece = piece.rpartition(b"\r")
    made = b""
    if returned:
        line_open.text += drawn
        made = b"".join(line_open.head + part + b"\r" for part in _texts(bytes(line_open.text)))
        line_open.text.clear()
    line_open.text += piece[: max(0, MOST_LINE_BYTES - len(line_open.text))]
    return made


def _texts(text: bytes) -> list[bytes]:
    return [part[:MOST_LINE_BYTES] for part in _RETURNS.split(text) if part] or [b""]


def _parts(head: bytes, text: bytes) -> bytes:
    return b"\r".join(head + part for part in _texts(text)) + b"\n"


def _line(line: bytes) -> bytes:
    if b"\r" not in line:
        return line + b"\n"
    head, text = b"", line
    time, _, after = line[:200].partition(b" ")
    stream, _, after = after.partition(b" ")
    tags, blank, _ = after.partition(b" ")
    if blank and stream in _STREAMS and tags[:1] in (b"F", b"P"):
        length = len(time) + len(stream) + len(tags) + 3
        head, text = line[:length], line[length:]
    return _parts(head, text)


def _with_returns_split(lines: bytes) -> bytes:
    made: list[bytes] = []
    position = 0
    while (drawn := lines.find(b"\r", position)) >= 0:
        start = lines.rfind(b"\n", position, drawn) + 1 or position
        end = lines.find(b"\n", drawn)
        if end < 0:  # parts of a line that has not ended
            break
        made += (lines[position:start], _line(lines[start:end]))
        position = end + 1
    return b"".join([*made, lines[position:]])


def _as_cri(lines: bytes) -> bytes:
    """Docker's records as lines of the CRI."""
    lines = _PLAIN_DOCKER.sub(rb"\3 \2 F \1", lines)
    if _DOCKER not in lines:
        return lines
    made = []
    for line in lines.split(b"\n"):
        found = (
            json_records.docker(line.decode("utf-8", "replace"))
            if line.startswith(_DOCKER)
            else None
        )
        if found is None:
            made.append(line)
            continue
        time, stream, text = found
        tag = "F" if text.endswith("\n") else "P"
        inner = text.removesuffix("\n").replace("\n", "\r")
        made.append(f"{time[:40]} {stream} {tag} {inner}".encode("utf-8", "replace"))
    return b"\n".join(made)
