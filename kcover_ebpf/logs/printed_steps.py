"""The step and epoch of a training, as programs and progress bars print them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

import re2

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.logs import lines
from kcover_ebpf.tunables.host import LATE_LINE_S

_BLANKS = rb"[\t\n\v\f\r ]*"
_ASSIGNED = rb"[\"']?" + _BLANKS + rb"[:=#]?" + _BLANKS + rb"\[?" + _BLANKS
_ENDS = rb"(?:[^.\d]|$)"


def _compiled(pattern: bytes) -> re2._Regexp[bytes]:
    """For bytes of any encoding. RE2, for whoever prints a line decides what is searched, and it takes linear time."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(pattern, options=options)


_STEP = _compiled(
    rb"(?i)\b(?:(?:global|train|training)[ _-]?)?(?:step|iteration|iter|batch)"
    + _ASSIGNED
    + rb"(\d{1,15})"
    + _ENDS
    + rb"|\b(\d{1,15})/\d{1,15} \["
)
_EPOCH = _compiled(rb"(?i)\bepoch" + _ASSIGNED + rb"(\d{1,9})" + _ENDS)
_NUMBER_IN_LINE = _ASSIGNED.replace(rb"\n", b"") + rb"\d+" + _ENDS
# Whatever the two above match in a line, these do.
_STEP_SIGN = rb"(?:step|iteration|iter|batch)" + _NUMBER_IN_LINE + rb"|\d/\d{1,15} \["
_EPOCH_SIGN = rb"epoch" + _NUMBER_IN_LINE
_OTHER = {"stdout": b"stderr", "stderr": b"stdout"}
_TIME_BYTES = 100
"""Longer than what the CRI puts in front of a line."""
_FIRST_PIECE_BYTES = 4 << 10
"""Of what is searched from its end: a training that prints its step prints it often."""


@dataclass(frozen=True, slots=True)
class PrintedStep:
    """The last that a text says; None where it says none."""

    step: int | None
    epoch: int | None

    def then(self, later_step: PrintedStep) -> PrintedStep:
        """What both say, where `later_step` was printed after this."""
        return PrintedStep(
            self.step if later_step.step is None else later_step.step,
            self.epoch if later_step.epoch is None else later_step.epoch,
        )


def last(text: bytes) -> PrintedStep:
    """The last step and epoch in it."""
    return PrintedStep(_last(_STEP, text), _last(_EPOCH, text))


def of_process(text: bytes, process: str) -> PrintedStep:
    """The last step and epoch in those of its lines that this process put its name in front of.

    Ranks that write to one log are at different steps, and a traceback is at that of the rank that raised it.
    """
    found_step = PrintedStep(None, None)
    for raw in reversed(text.split(b"\n")) if process else ():
        if (printed := last(raw)) == PrintedStep(None, None):
            continue
        line = lines.parse(raw.decode("utf-8", "replace"))
        if line is not None and are_of_one(line.process, process):
            found_step = printed.then(found_step)
        if None not in (found_step.step, found_step.epoch):
            break
    return found_step


def are_of_one(process: str, other_process: str) -> bool:
    """Whether two names that launchers put in front of lines are of one process: one may name it more exactly."""
    names = sorted((process, other_process), key=len)
    return names[0] != "" and f"{names[1]} ".startswith(f"{names[0]} ")


def is_of_before(line: lines.LogLine, stream: str, raised_s: float) -> bool:
    """Whether a line that was written after a traceback (to `stream`, unix seconds) was printed before it.

    It may be where it came through the other pipe: a runtime reads each by itself, and a program flushes its standard
    output when it ends.
    """
    if line.stream == stream or line.time_s is None:
        return False
    return 0.0 <= line.time_s - raised_s <= LATE_LINE_S


def written_late(block: bytes, stream: str, raised_s: float, process: str = "") -> PrintedStep:
    """What lines of this block say that was printed before a traceback and written after it.

    `block`: whole lines, in order of time; `stream`, `raised_s`: of the traceback (unix seconds). `process`: whose
    lines count; empty: those of all.
    """
    if stream not in _SIGNS:
        return PrintedStep(None, None)
    block = _until(block, raised_s + LATE_LINE_S)
    step, epoch = (
        _last_late(pattern, sign, block, stream, raised_s, process)
        for pattern, sign in zip((_STEP, _EPOCH), _SIGNS[stream], strict=True)
    )
    return PrintedStep(step, epoch)


def _until(block: bytes, end_s: float) -> bytes:
    """The lines up to that time."""
    if _time_s(block[block.rfind(b"\n", 0, -1) + 1 :]) <= end_s:
        return block
    all_lines = block.split(b"\n")
    return b"\n".join(all_lines[: bisect_right(all_lines, end_s, key=_time_s)])


def _time_s(raw: bytes) -> float:
    """Unix seconds; before all times where the line does not say."""
    line = lines.parse(raw[:_TIME_BYTES].decode("utf-8", "replace"))
    found = None if line is None else line.time_s
    return -math.inf if found is None else found


def _last_late(
    pattern: re2._Regexp[bytes],
    sign: re2._Regexp[bytes],
    block: bytes,
    stream: str,
    raised_s: float,
    process: str,
) -> int | None:
    for raw in _backwards(block, sign):
        line = lines.parse(raw.decode("utf-8", "replace"))
        if line is None or line.time_s is None:
            continue
        if line.time_s < raised_s:
            break  # the lines of one stream are in order
        if process and not are_of_one(line.process, process):
            continue
        if is_of_before(line, stream, raised_s) and (number := _last(pattern, raw)) is not None:
            return number
    return None


def _backwards(block: bytes, sign: re2._Regexp[bytes]) -> Iterator[bytes]:
    """The lines with this sign, the last one first."""
    end, size = len(block), _FIRST_PIECE_BYTES
    while end > 0:
        start = block.rfind(b"\n", 0, max(0, end - size)) + 1
        piece = block[start:end]
        for match in reversed(list(sign.finditer(piece))):
            newline = piece.find(b"\n", match.start())
            yield piece[match.start() : len(piece) if newline < 0 else newline]
        end, size = start, 2 * size


def _last(pattern: re2._Regexp[bytes], text: bytes) -> int | None:
    number = None
    for match in pattern.finditer(text):
        number = int(next(group for group in match.groups() if group is not None))
    return number


def _sign(stream: bytes, text: bytes) -> re2._Regexp[bytes]:
    """Finds lines of a stream (CRI) that may have such a text."""
    return _compiled(rb"(?im)^[^ \n]+ " + stream + rb" [^\n]*?(?:" + text + rb")")


_SIGNS = {
    stream: (_sign(other, _STEP_SIGN), _sign(other, _EPOCH_SIGN))
    for stream, other in _OTHER.items()
}
"""Of a step and of an epoch, in lines of the other stream than this."""
