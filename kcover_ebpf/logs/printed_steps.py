"""Finds the step and epoch of a training in the output of programs and progress bars. Pure."""

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
    """A pattern for bytes of any encoding. RE2, because tenants write the text, and RE2 takes linear time."""
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
# A superset of the two patterns above: every line that they match matches this one.
_STEP_SIGN = rb"(?:step|iteration|iter|batch)" + _NUMBER_IN_LINE + rb"|\d/\d{1,15} \["
_EPOCH_SIGN = rb"epoch" + _NUMBER_IN_LINE
_OTHER = {"stdout": b"stderr", "stderr": b"stdout"}
_FIRST_PIECE_BYTES = 4 << 10
"""Bytes searched first, from the end of the text: a training prints its step often."""


@dataclass(frozen=True, slots=True)
class PrintedStep:
    """The last step and epoch in a text; None for what it does not contain."""

    step: int | None
    epoch: int | None

    def then(self, later_step: PrintedStep) -> PrintedStep:
        """Combined with `later_step`, which was printed after this one and overrides it."""
        return PrintedStep(
            self.step if later_step.step is None else later_step.step,
            self.epoch if later_step.epoch is None else later_step.epoch,
        )


def last(text: bytes) -> PrintedStep:
    """The last step and epoch in a text."""
    return PrintedStep(_last(_STEP, text), _last(_EPOCH, text))


def of_process(text: bytes, process: str) -> PrintedStep:
    """The last step and epoch in those lines that have the name of this process.

    Ranks that share a log are at different steps, and a traceback belongs to the step of its own rank.
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
    """Whether two process names of launchers mean the same process: one may be more specific."""
    names = sorted((process, other_process), key=len)
    return names[0] != "" and f"{names[1]} ".startswith(f"{names[0]} ")


def is_of_before(line: lines.LogLine, stream: str, raised_s: float) -> bool:
    """Whether a line that was written after a traceback (to `stream`, unix seconds) was printed before it.

    That is possible if it came through the other pipe: a runtime reads each pipe separately, and a program flushes
    its standard output only when it ends.
    """
    if line.stream == stream or line.time_s is None:
        return False
    return 0.0 <= line.time_s - raised_s <= LATE_LINE_S


def written_late(block: bytes, stream: str, raised_s: float, process: str = "") -> PrintedStep:
    """The step in lines of this block that were printed before a traceback and written after it.

    `block`: complete lines in order of time; `stream`, `raised_s`: of the traceback (unix seconds). `process`: only
    its lines count; empty: all lines.
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
    """Unix seconds of the line; minus infinity if it has no time."""
    found = lines.time_s_of(raw)
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
    """The lines that match the sign, last one first."""
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
    """Pattern for CRI lines of a stream that may contain such a text."""
    return _compiled(rb"(?im)^[^ \n]+ " + stream + rb" [^\n]*?(?:" + text + rb")")


_SIGNS = {
    stream: (_sign(other, _STEP_SIGN), _sign(other, _EPOCH_SIGN))
    for stream, other in _OTHER.items()
}
"""Stream -> patterns for a step and for an epoch in lines of the other stream."""
