"""Finds Python tracebacks in a container's log, with their identity and the training step before them.

Pure. No text of a log leaves this module, because a message may contain a secret. A traceback is identified by a
hash of its frames and error class, and by the file and line of one frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from importlib import import_module
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.logs import lines, printed_steps
from kcover_ebpf.logs.levels import LogLevel
from kcover_ebpf.logs.printed_steps import PrintedStep

_MARK = b"Traceback (most recent call last):"
_FRAME = re.compile(
    r' {1,80}File "(?P<file>[^"]{1,4096})", line (?P<line>\d{1,9})(?:, in (?P<name>.*))?$'
)
_ERROR = re.compile(r" {0,80}(?P<error>[A-Za-z_][\w.]{0,200})(?::|$)")
_ALONE = re.compile(r" {0,80}(?:(?:Exception Group|Original) )?Traceback ")
_IGNORED = re.compile(rb"Exception ignored (?:in|on)[^\r\n]{1,400}[\r\n]{1,2}[^\r\n]{0,200}$")
"""The line before an error in a finaliser, after which Python continues (`sys.unraisablehook`)."""
_PACKAGES = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<")
_PLAIN_NAME = re.compile(r"[\w.+@-]{1,100}")
_SECONDARY = re.compile(
    r"(?:.*\.)?(?:ChildFailedError|SignalException|KeyboardInterrupt|SystemExit|CalledProcessError)$"
)
_CONTEXT_BYTES = 4 << 10
"""Bytes read before a traceback to find the step: a training prints it every few seconds."""
_MOST_FRAMES = 200
_MOST_LINES = 1000
"""Most lines of one traceback; Python abbreviates repetitions."""
_MOST_OPEN = 32
"""Most unfinished tracebacks, i.e. ranks of one container that write one at the same time."""
_HASHES = "_sha2", "_sha256", "hashlib"
"""SHA-256 without OpenSSL: modules of Python 3.12 and 3.11, and a fallback. `hashlib` loads
OpenSSL, which costs 4 MB in a reader that hashes nothing else."""


def _hash_function() -> Any:
    for name in _HASHES[:-1]:
        try:
            return import_module(name).sha256
        except ImportError:
            continue
    return import_module(_HASHES[-1]).sha256


_sha256 = _hash_function()


@dataclass(frozen=True, slots=True)
class FoundTraceback:
    """One traceback, without text that must not be reported."""

    fingerprint: str
    time: str
    """Time of its first line (RFC 3339); empty if the log has no times."""
    error: str
    """Its last line, only for matching with the rules; must not be kept."""
    stream: str
    """`stdout` or `stderr`; empty if the log does not say."""
    place: str | None
    printed: PrintedStep
    """Step in the lines before it, and in lines between its own that were printed before it."""
    secondary: bool
    """It follows from another failure: a launcher's traceback, or one due to an interruption."""
    rank: int | None = None
    """Global rank of the process that printed it; None if no head states it."""
    process: str = ""
    """Name of the process whose lines `printed` comes from; empty if from all lines of the log."""


@dataclass(slots=True)
class _Open:
    time: str
    stream: str
    printed: PrintedStep
    process: str
    """The process that printed it; see `FoundTraceback.process`."""
    rank: int | None
    indent: int
    """Blanks before its first line, of whatever origin; frames have more, its last line equally many."""
    frame_count: int = 0
    digest: Any = field(default_factory=_sha256)
    """SHA-256 of the frames so far, each with a line end: their texts may be as long as a program likes."""
    place: str | None = None
    own_place: str | None = None
    """Location of the innermost frame outside installed packages."""
    line_count: int = 0


class TracebackFinder:
    """Takes complete lines in order. Bounded: some KiB of context, and a hash of each of 32 unfinished tracebacks."""

    def __init__(self) -> None:
        self._context = b""
        self._open: dict[tuple[str, str], _Open] = {}

    def feed(self, block: bytes) -> Iterator[FoundTraceback]:
        """The tracebacks that end in this block of complete lines, as `NormalLines` produces them."""
        block = block.replace(b"\r", b"\n") if b"\r" in block else block
        position = 0
        while position < len(block):
            if not self._open:
                mark = block.find(_MARK, position)
                if mark < 0:
                    break
                position = block.rfind(b"\n", position, mark) + 1 or position
            elif (concerned := self._next_concerned(block, position)) > position:
                self._add_late_steps(block[position:concerned])
                position = concerned
                continue
            end = block.find(b"\n", position)
            end = len(block) if end < 0 else end
            line = lines.parse(block[position:end].decode("utf-8", "replace").rstrip("\r"))
            if line is not None:
                yield from self._take(line, partial(self._before, block, position))
            position = end + 1
        self._context = self._before(block, len(block))

    def _next_concerned(self, block: bytes, position: int) -> int:
        """Offset of the next line that may belong to an open traceback or begin one; the current one if in doubt."""
        streams = {stream for stream, _ in self._open}
        stream = streams.pop()
        if streams or not stream:
            return position
        own = block.find(f" {stream} ".encode(), position)
        own = len(block) if own < 0 else own
        mark = block.find(_MARK, position, own)
        if own == len(block) and mark < 0:
            return own
        return block.rfind(b"\n", position, own if mark < 0 else mark) + 1 or position

    def _add_late_steps(self, others: bytes) -> None:
        """Add steps from lines of the stream that no open traceback uses."""
        for traceback in self._open.values():
            if (raised_s := lines.unix_s(traceback.time)) is not None:
                late = printed_steps.written_late(
                    others, traceback.stream, raised_s, traceback.process
                )
                traceback.printed = traceback.printed.then(late)

    def _before(self, block: bytes, position: int) -> bytes:
        return (self._context + block[max(0, position - _CONTEXT_BYTES) : position])[
            -_CONTEXT_BYTES:
        ]

    def _take(self, line: lines.LogLine, context: Callable[[], bytes]) -> Iterator[FoundTraceback]:
        self._add_late_step(line)
        text, key = line.text, (line.stream, line.process)
        if text.rstrip().endswith(_MARK.decode()):
            before = context()
            is_handled = line.level is not None and line.level < LogLevel.ERROR
            if len(self._open) < _MOST_OPEN and not is_handled and not _IGNORED.search(before):
                # after a message or a progress bar on the same line, it says nothing about the
                # lines that follow
                is_alone = _ALONE.match(text) is not None
                indent = len(text) - len(text.lstrip(" ")) if is_alone else 0
                own_step = printed_steps.of_process(before, line.process)
                self._open[key] = _Open(
                    line.time,
                    line.stream,
                    printed_steps.last(before).then(own_step),
                    line.process if own_step.step is not None else "",
                    line.rank,
                    indent,
                )
            return
        found_open = self._open.get(key)
        if found_open is None:
            return
        found_open.line_count += 1
        indent = len(text) - len(text.lstrip(" "))
        if (frame := _FRAME.match(text)) and indent > found_open.indent:
            _add(found_open, frame)
        elif found_open.line_count > _MOST_LINES:
            del self._open[key]
        elif text.strip() and indent <= found_open.indent:
            del self._open[key]
            if found_open.frame_count and (error := _ERROR.match(text)):
                yield _finished(found_open, text.strip(), error["error"])

    def _add_late_step(self, line: lines.LogLine) -> None:
        others = [
            item
            for item in self._open.values()
            if item.stream != line.stream
            and (not item.process or printed_steps.are_of_one(line.process, item.process))
        ]
        printed = printed_steps.last(line.text.encode()) if others else PrintedStep(None, None)
        for traceback in others:
            raised_s = lines.unix_s(traceback.time)
            if raised_s is not None and printed_steps.is_of_before(
                line, traceback.stream, raised_s
            ):
                traceback.printed = traceback.printed.then(printed)


def _add(found_open: _Open, frame: re.Match[str]) -> None:
    file, number = frame["file"], frame["line"]
    if found_open.frame_count < _MOST_FRAMES:
        found_open.frame_count += 1
        # folders differ between images, and may be temporary
        text = f"{'/'.join(file.split('/')[-3:])}:{number}:{frame['name']}\n"
        found_open.digest.update(text.encode())
    name = file.rpartition("/")[2]
    # a name with other characters may be a text that a program made up
    place = f"{name}:{number}" if _PLAIN_NAME.fullmatch(name) else None
    found_open.place = place
    if not _PACKAGES.search(file):
        found_open.own_place = place


def _finished(found_open: _Open, text: str, error: str) -> FoundTraceback:
    found_open.digest.update(error.encode())
    return FoundTraceback(
        fingerprint=found_open.digest.hexdigest()[:16],
        time=found_open.time,
        error=text,
        stream=found_open.stream,
        place=found_open.own_place or found_open.place,
        printed=found_open.printed,
        secondary=_SECONDARY.match(error) is not None,
        rank=found_open.rank,
        process=found_open.process,
    )
