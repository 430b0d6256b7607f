"""Joins the pieces that a container runtime makes of a long line, and cuts blocks at the ends of lines. Pure.

CRI container log format (kubernetes/enhancements, keps/sig-node): `TIME STREAM TAGS TEXT`; the first tag is P for a
piece that is continued by the next line of the same stream, F for the last or only one. Pieces of the two streams
alternate as they were written.
"""

from __future__ import annotations

MOST_LINE_BYTES = 32 << 10
"""What a line has beyond them is dropped: a message that explains a fault is shorter."""
_PIECES = (b" stdout P", b" stderr P")


class PartialLines:
    """Takes the bytes of one log in order. Keeps at most the beginnings of three lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False
        """The kept beginning of a line has reached its limit: the rest of the line is dropped."""
        self._open: dict[bytes, bytearray] = {}
        """Stream -> the line that is joined, with the prefix of its first piece."""

    def skip(self) -> None:
        """Bytes are missing: what comes next begins in the middle of a line."""
        self._open.clear()
        self._rest, self._is_cut = b"", True

    def whole(self, block: bytes) -> bytes:
        """The lines that end in this block, each as one line."""
        if self._is_cut:
            _, newline, block = block.partition(b"\n")
            if not newline:
                return b""
            self._is_cut = False
            # the kept beginning ends here
            block = self._rest + newline + block if self._rest else block
            self._rest = b""
        lines, newline, rest = (self._rest + block).rpartition(b"\n")
        self._rest = rest[:MOST_LINE_BYTES]
        self._is_cut = len(rest) > MOST_LINE_BYTES
        lines += newline
        if not self._open and not any(each in lines for each in _PIECES):
            return lines
        return b"".join(self._joined(lines))

    def _joined(self, lines: bytes) -> list[bytes]:
        made: list[bytes] = []
        # `splitlines` would also end a line where a progress bar returns to its beginning
        for line in lines.split(b"\n")[:-1]:
            time, _, after = line.partition(b" ")
            stream, _, after = after.partition(b" ")
            tags, _, text = after.partition(b" ")
            kept = self._open.get(stream)
            if tags[:1] == b"P":
                if kept is None:
                    kept = self._open[stream] = bytearray(b"%b %b F " % (time, stream))
                _append(kept, text)
            elif kept is not None and tags[:1] == b"F":
                _append(kept, text)
                made.append(bytes(kept) + b"\n")
                del self._open[stream]
            else:
                made.append(line + b"\n")
        # a stream is stdout or stderr: whatever else is there is no line of this format
        odd = self._open.keys() - {b"stdout", b"stderr"}
        made += [bytes(self._open.pop(stream)) + b"\n" for stream in odd]
        return made


def _append(kept: bytearray, text: bytes) -> None:
    kept += text[: max(0, MOST_LINE_BYTES - len(kept))]
