"""How far a training has come, as its log prints it: steps, checkpoints, and what the program says of itself. Pure.

A program may say more than a trainer prints (hints/kcover_hint.py): `kcover: phase NAME up to 600 s`, `kcover: phase
NAME ends`, `kcover: checkpoint 1200 is complete`. It never has to.
"""

from __future__ import annotations

import re2

from kcover_ebpf.api.log_report import AnnouncedPhase, PrintedProgress
from kcover_ebpf.logs import lines

_PIECE_BYTES = 4 << 10
"""Of what is searched from its end: a training that prints its step prints it often."""
_TIME_BYTES = 100


def _compiled(pattern: bytes) -> re2._Regexp[bytes]:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_nl = True
    return re2.compile(pattern, options=options)


_STEP = _compiled(
    rb"(?im)\b(?:(?:global|train|training)[ _-]?)?(?:step|iteration|iter|batch)[\"']?[\t ]{0,8}"
    rb"[:=#]?[\t ]{0,12}\[?[\t ]{0,8}(\d{1,15})(?:[^.\d]|$)|\b(\d{1,15})/\d{1,15} \["
)
_SAVED = _compiled(
    rb"(?i)\b(?:successfully |finished |done )?(?:saved|saving) (?:a |the |model |training )?checkpoint\b[^\n\r]{0,200}"
    rb"|\bcheckpoint\b[^\n\r]{0,160}\b(?:saved|written|complete[d]?)\b[^\n\r]{0,80}"
    rb"|\bkcover: checkpoint \d{1,15} is complete"
)
_BEGUN = _compiled(rb"(?i)\bsaving (?:a |the |model |training )?checkpoint\b")
_DONE = _compiled(rb"(?i)\b(?:saved|successfully|finished|done|written|complete[d]?)\b")
_CHECKPOINT = _compiled(
    rb"(?i)(?:step|iteration|iter|checkpoint|ckpt)[ _=:#/-]{0,8}(?:step[ _=-]?)?(\d{1,15})"
)
_CHECKPOINT_WORDS = (b"heckpoint", b"CHECKPOINT")
_PHASE_WORD = b"kcover: phase "
_PHASE = _compiled(
    rb"\bkcover: phase ([A-Za-z][\w-]{0,31}) (?:(ends)|up to (\d{1,9})(?:\.\d{1,3})? s)\b"
)


class ProgressWatch:
    """Takes the lines of a container, start after start, as `NormalLines` makes them."""

    def __init__(self, longest_phase_s: float) -> None:
        """`longest_phase_s`: what a program announces for longer is refused."""
        self._longest_phase_s = longest_phase_s
        self._before: int | None = None
        """The last step of the start before."""
        self._step: int | None = None
        self._begin(is_first=False)

    def begin(self) -> None:
        """The container was started anew, and its log is read from the beginning."""
        self._before = self._step if self._step is not None else self._before
        self._begin(is_first=True)

    def _begin(self, *, is_first: bool) -> None:
        self._awaits_first = is_first
        self._step, self._step_s = None, 0.0
        self._redone: int | None = None
        self._saved: int | None = None
        self._saved_s = 0.0
        self._saving_s: float | None = None
        self._phase: tuple[str, float, float] | None = None

    def feed(self, block: bytes, now_s: float) -> None:
        """Lines in order; `now_s` (unix seconds) is the time of those without one."""
        if self._awaits_first and (match := _STEP.search(block)) is not None:
            self._awaits_first = False
            first = _number(match)
            if self._before is not None and first is not None:
                self._redone = max(0, self._before - first + 1)
        # to find a word is ten times as fast as a pattern, and most blocks have none of these
        if any(word in block for word in _CHECKPOINT_WORDS):
            # one without a number is of the last step before it
            for match in _SAVED.finditer(block):
                self._note_checkpoint(block, match, now_s)
        if (found := _last_step(block, len(block))) is not None:
            step, at = found
            if step != self._step:
                self._step, self._step_s = step, _time_s(block, at, now_s)
        if _PHASE_WORD in block:
            for match in _PHASE.finditer(block):
                self._note_phase(match, _time_s(block, match.start(), now_s))

    def _note_checkpoint(self, block: bytes, match: re2._Match[bytes], now_s: float) -> None:
        text = match.group(0)
        if _BEGUN.search(text) and not _DONE.search(text):
            self._saving_s = _time_s(block, match.start(), now_s)
            return
        self._saving_s = None
        named = [found.group(1) for found in _CHECKPOINT.finditer(text)]
        step = int(named[-1]) if named else None
        if step is None:
            before = _last_step(block, match.start())
            step = before[0] if before is not None else self._step
        if step is not None:
            self._saved, self._saved_s = step, _time_s(block, match.start(), now_s)

    def _note_phase(self, match: re2._Match[bytes], time_s: float) -> None:
        name = match.group(1).decode("ascii", "replace")
        if match.group(2) is not None:
            if self._phase is not None and self._phase[0] == name:
                self._phase = None
            return
        self._phase = (name, time_s, float(match.group(3)))

    def progress(self, now_s: float) -> PrintedProgress | None:
        """What was printed so far, ages before `now_s`; None where no step and no checkpoint was."""
        if self._step is None and self._saved is None:
            return None
        return PrintedProgress(
            step=self._step,
            age_s=None if self._step is None else _age(now_s, self._step_s),
            redone_steps=self._redone,
            checkpoint_step=self._saved,
            checkpoint_age_s=None if self._saved is None else _age(now_s, self._saved_s),
            saving_age_s=None if self._saving_s is None else _age(now_s, self._saving_s),
        )

    def phase(self, now_s: float) -> AnnouncedPhase | None:
        """The long phase that the program says it is in; None where it is in none, or its time is over."""
        if self._phase is None:
            return None
        name, begun_s, up_to_s = self._phase
        left_s = round(begun_s + up_to_s - now_s, 3)
        if left_s <= 0:
            return None
        return AnnouncedPhase(name, left_s, refused=up_to_s > self._longest_phase_s)


def _age(now_s: float, time_s: float) -> float:
    return max(0.0, round(now_s - time_s, 3))


def _number(match: re2._Match[bytes]) -> int | None:
    digits = match.group(1) or match.group(2)
    return int(digits) if digits else None


def _last_step(block: bytes, end: int) -> tuple[int, int] | None:
    """The last step before `end`, and where it is."""
    size = _PIECE_BYTES
    if _STEP.search(block[max(0, end - size) : end]) is None and _STEP.search(block) is None:
        return None
    while end > 0:
        start = block.rfind(b"\n", 0, max(0, end - size)) + 1
        found = None
        for match in _STEP.finditer(block[start:end]):
            found = match
        if found is not None and (number := _number(found)) is not None:
            return number, start + found.start()
        end, size = start, 2 * size
    return None


def _time_s(block: bytes, at: int, now_s: float) -> float:
    start = max(block.rfind(b"\n", 0, at), block.rfind(b"\r", 0, at)) + 1
    line = lines.parse(block[start : start + _TIME_BYTES].decode("utf-8", "replace"))
    found = None if line is None else line.time_s
    return now_s if found is None else found
