r"""Cuts blocks at line ends, and joins lines that a container runtime has split.

Pure. CRI container log format (kubernetes/enhancements, keps/sig-node): `TIME STREAM TAGS TEXT`. The first tag is P
for a part that the next line of the same stream continues, and F for the last or only part. Parts of the two
streams are interleaved as they were written. Docker's records (json-file driver) are converted to such lines first.

One line may contain several texts: a progress bar returns to the beginning of its line each time it is drawn, and
the next output follows it. These texts are passed on as parts of one line. Each part but the last ends with `\r`
instead of `\n`, and each has the runtime's prefix of the line.
"""

from __future__ import annotations

import re
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.logs import json_records

MOST_LINE_BYTES = 32 << 10
"""Most bytes of a part of a line; the rest is dropped. A message that explains a fault is shorter."""
_PIECES = (b" stdout P", b" stderr P")
_STREAMS = (b"stdout", b"stderr")
_DOCKER = b'{"log":"'
_PLAIN_DOCKER = re.compile(
    rb'^\{"log":"([^"\\\n]{0,32768})\\n","stream":"(stdout|stderr)"(?:,"attrs":\{[^}\n]{0,500}\})?,"time":"([^"\\\n]{1,40})"\}$',
    re.MULTILINE,
)
"""A record whose text contains no escapes."""
_ENDS = re.compile(rb"[\r\n]")
_RETURNS = re.compile(rb"\r+")


@dataclass(slots=True)
class _Open:
    """A line of which parts are missing."""

    head: bytes
    """The runtime's prefix of its first part."""
    text: bytearray = field(default_factory=bytearray)


class PartialLines:
    """Takes the bytes of one log in order. Keeps at most the beginnings of three lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False
        """True if the kept beginning of a part has reached its limit, so that the rest of the part
        is dropped."""
        self._open: dict[bytes, _Open] = {}
        """Stream -> the line that is being joined."""

    def skip(self) -> None:
        """Bytes are missing: the next block begins in the middle of a line."""
        self._open.clear()
        self._rest, self._is_cut = b"", True

    def whole(self, block: bytes) -> bytes:
        """The complete lines and parts that end in this block; as many line ends as in the block."""
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
        """The rest at the end of the log: a last line without its line end, or a split line without its last part."""
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
                # an empty line in place of the part, so that lines keep their numbers
                made.append(_add(self._open[stream], text) + b"\n")
            elif is_known and stream in self._open and tags[:1] == b"F":
                made.append(_add(self._open[stream], text))
                made.append(_parts(*self._closed(stream)))
            else:
                made.append(_line(line))
        return [*made, rest]


def _add(line_open: _Open, piece: bytes) -> bytes:
    """Add a part to a line; returns the parts of the line that are now complete."""
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
    """Docker's records as CRI lines."""
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
