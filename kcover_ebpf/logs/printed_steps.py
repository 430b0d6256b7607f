"""The step and epoch of a training, as programs and progress bars print them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kcover_ebpf.logs import lines
from kcover_ebpf.tunables.host import LATE_LINE_S

_STEP = re.compile(
    rb"(?i)\b(?:(?:global|train|training)[ _-]?)?(?:step|iteration|iter|batch)[\"']?\s*[:=#]?\s*\[?\s*"
    rb"(\d{1,15})(?![.\d])|\b(\d{1,15})/\d{1,15} \["
)
_EPOCH = re.compile(rb"(?i)\bepoch[\"']?\s*[:=#]?\s*\[?\s*(\d{1,9})(?![.\d])")


@dataclass(frozen=True, slots=True)
class PrintedStep:
    """The last that a text says; None where it says none."""

    step: int | None
    epoch: int | None

    def then(self, later: PrintedStep) -> PrintedStep:
        """What both say, where `later` was printed after this."""
        return PrintedStep(
            self.step if later.step is None else later.step,
            self.epoch if later.epoch is None else later.epoch,
        )


def last(text: bytes) -> PrintedStep:
    """The last step and epoch in it."""
    return PrintedStep(_last(_STEP, text), _last(_EPOCH, text))


def is_of_before(line: lines.LogLine, stream: str, raised_s: float) -> bool:
    """Whether a line that was written after a traceback (to `stream`, unix seconds) was printed before it.

    It may be where it came through the other pipe: a runtime reads each by itself, and a program flushes its standard
    output when it ends.
    """
    if line.stream == stream or line.time_s is None:
        return False
    return 0.0 <= line.time_s - raised_s <= LATE_LINE_S


def each_line(block: bytes) -> Iterator[tuple[lines.LogLine, PrintedStep]]:
    """The lines of a block of whole lines that say a step or an epoch."""
    for raw in block.split(b"\n"):
        found = last(raw)
        if found.step is None and found.epoch is None:
            continue
        line = lines.parse(raw.decode("utf-8", "replace"))
        if line is not None:
            yield line, found


def _last(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    number = None
    for match in pattern.finditer(text):
        number = int(next(group for group in match.groups() if group is not None))
    return number
