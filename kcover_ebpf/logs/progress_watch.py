"""Tracks the progress of a training in its log: steps, checkpoints, and announcements of the program.

Pure. A program may announce more than a trainer prints (hints/kcover_hint.py): `kcover: phase NAME up to 600 s`,
`kcover: phase NAME ends`, `kcover: checkpoint 1200 is complete`. It never has to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import re2

from kcover_ebpf.api import known_lines
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.api.log_report import AnnouncedPhase, PrintedProgress
from kcover_ebpf.logs import lines

_PIECE_BYTES = 4 << 10
"""Bytes searched first, from the end of the text: a training prints its step often."""


def _compiled(pattern: bytes) -> re2._Regexp[bytes]:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_nl = True
    return re2.compile(pattern, options=options)


_STEP = _compiled(f"(?im){known_lines.STEP_IN_EPOCH}|{known_lines.STEP}".encode())
_IN_EPOCH = tuple(
    group
    for name, group in cast("Mapping[bytes, int]", _STEP.groupindex).items()
    if name.startswith(known_lines.IN_EPOCH.encode())
)
_LOSS = _compiled(known_lines.PATTERNS[KnownLine.LOSS].encode())
_TOKENS = _compiled(known_lines.TOKENS.encode())
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
_MOST_PHASES = 16
"""Most phases at the same time: a program that uses a new name each time would end none of them."""
_PHASE_WORD = b"kcover: phase "
_PHASE = _compiled(
    rb"\bkcover: phase ([A-Za-z][\w-]{0,31}) (?:(ends)|up to (\d{1,9})(?:\.\d{1,3})? s)\b"
)


class ProgressWatch:
    """Takes the lines of a container, start after start, as `NormalLines` produces them."""

    def __init__(self, longest_phase_s: float) -> None:
        """`longest_phase_s`: a longer phase announced by a program is refused."""
        self._longest_phase_s = longest_phase_s
        self._before: int | None = None
        """The last step of the previous start; None if there was none."""
        self._begin(is_first=False)

    def begin(self) -> None:
        """The container was restarted, and its log is read from the beginning."""
        self._before = self._step if self._step is not None else self._before
        self._begin(is_first=True)

    def _begin(self, *, is_first: bool) -> None:
        self._awaits_first = is_first
        self._step: int | None = None
        self._first: tuple[int, float] | None = None
        """The first step of this start, and when it was printed."""
        self._place: tuple[int, bool] | None = None
        """The last step number, and whether it counts within its epoch."""
        self._moved_s = self._step_s = 0.0
        """When `_place` changed, and when the step did (unix seconds)."""
        self._redone: int | None = None
        self._loss: float | None = None
        self._tokens: int | None = None
        self._saved: int | None = None
        self._saved_s = 0.0
        self._phases: dict[str, tuple[float, float]] = {}
        """Unfinished phases by name: when each began (unix seconds), and how long it may take."""
        self._saving_s: float | None = None

    def feed(self, block: bytes, now_s: float) -> None:
        """Lines in order; `now_s` (unix seconds) is the time of those without one."""
        if self._first is None and (first := _first_step(block)) is not None:
            self._first = (first[0], lines.time_s_at(block, first[1], now_s))
            if self._awaits_first and self._before is not None:
                self._redone = max(0, self._before - first[0] + 1)
        # searching for a word is ten times as fast as a pattern, and most blocks contain none of
        # these
        if any(word in block for word in _CHECKPOINT_WORDS):
            # a checkpoint without a number belongs to the last step before it
            for match in _SAVED.finditer(block):
                self._note_checkpoint(block, match, now_s)
        self._note_step(block, now_s)
        self._note_numbers(block)
        if _PHASE_WORD in block:
            for match in _PHASE.finditer(block):
                self._note_phase(match, lines.time_s_at(block, match.start(), now_s))

    def _note_step(self, block: bytes, now_s: float) -> None:
        last_place, last_step = _last_steps(block, len(block))
        if last_place is not None and last_place[:2] != self._place:
            self._place = last_place[:2]
            self._moved_s = lines.time_s_at(block, last_place[2], now_s)
        if last_step is not None and last_step[0] != self._step:
            self._step = last_step[0]
            self._step_s = lines.time_s_at(block, last_step[2], now_s)

    def _note_numbers(self, block: bytes) -> None:
        piece = block[max(0, len(block) - _PIECE_BYTES) :]
        if (loss := _last_number(_LOSS, piece)) is not None:
            self._loss = loss if loss - loss == 0 else None
        if (tokens := _last_number(_TOKENS, piece)) is not None:
            self._tokens = int(tokens)

    def _note_checkpoint(self, block: bytes, match: re2._Match[bytes], now_s: float) -> None:
        text = match.group(0)
        if _BEGUN.search(text) and not _DONE.search(text):
            self._saving_s = lines.time_s_at(block, match.start(), now_s)
            return
        self._saving_s = None
        named = [found.group(1) for found in _CHECKPOINT.finditer(text)]
        step = int(named[-1]) if named else None
        if step is None:
            _, before = _last_steps(block, match.start())
            step = before[0] if before is not None else self._step
        if step is not None:
            self._saved, self._saved_s = step, lines.time_s_at(block, match.start(), now_s)

    def _note_phase(self, match: re2._Match[bytes], time_s: float) -> None:
        name = match.group(1).decode("ascii", "replace")
        if match.group(2) is not None:
            self._phases.pop(name, None)
            return
        if name in self._phases or len(self._phases) < _MOST_PHASES:
            self._phases[name] = time_s, float(match.group(3))

    def forgive(self, seconds: float, now_s: float) -> None:
        """As `JobRuleWatch.forgive`, for the last step and for phases."""
        self._moved_s = min(self._moved_s + seconds, now_s)
        self._phases = {
            name: (min(begun_s + seconds, now_s), up_to_s)
            for name, (begun_s, up_to_s) in self._phases.items()
        }

    def progress(self, now_s: float) -> PrintedProgress | None:
        """The progress so far, as ages before `now_s`; None if no step and no checkpoint was printed."""
        if self._place is None and self._saved is None:
            return None
        return PrintedProgress(
            step=self._step,
            age_s=None if self._place is None else _age(now_s, self._moved_s),
            redone_steps=self._redone,
            checkpoint_step=self._saved,
            checkpoint_age_s=None if self._saved is None else _age(now_s, self._saved_s),
            first_step=None if self._first is None else self._first[0],
            first_age_s=None if self._first is None else _age(now_s, self._first[1]),
            step_s=self._mean_step_s(),
            loss=self._loss,
            tokens=self._tokens,
            saving_age_s=None if self._saving_s is None else _age(now_s, self._saving_s),
        )

    def _mean_step_s(self) -> float | None:
        if self._first is None or self._step is None:
            return None
        steps, took_s = self._step - self._first[0], self._step_s - self._first[1]
        return round(took_s / steps, 6) if steps > 0 and took_s > 0 else None

    def phase(self, now_s: float) -> AnnouncedPhase | None:
        """The announced phase that the program is in; of several, the one that ends last; None if there is none.

        A refused phase is returned only if there is no permitted one.
        """
        found = [
            AnnouncedPhase(name, left_s, refused=up_to_s > self._longest_phase_s)
            for name, (begun_s, up_to_s) in self._phases.items()
            if (left_s := round(begun_s + up_to_s - now_s, 3)) > 0
        ]
        return max(found, key=lambda phase: (not phase.refused, phase.left_s), default=None)


def _age(now_s: float, time_s: float) -> float:
    return max(0.0, round(now_s - time_s, 3))


def _number(match: re2._Match[bytes]) -> int:
    return int(next(text for text in match.groups() if text is not None))


def _is_in_epoch(match: re2._Match[bytes]) -> bool:
    return any(match.group(group) is not None for group in _IN_EPOCH)


def _first_step(block: bytes) -> tuple[int, int] | None:
    """The first step counted from the beginning of the training, and its offset."""
    for match in _STEP.finditer(block):
        if not _is_in_epoch(match):
            return _number(match), match.start()
    return None


_Place = tuple[int, bool, int]
"""(step number, whether it counts within its epoch, offset)."""


def _last_steps(block: bytes, end: int) -> tuple[_Place | None, _Place | None]:
    """The last step number before `end`, and the last one counted from the beginning of the training.

    The second is searched only near the first, because a training that prints both prints them together.
    """
    size = _PIECE_BYTES
    if _STEP.search(block[max(0, end - size) : end]) is None and _STEP.search(block) is None:
        return None, None
    while end > 0:
        start = block.rfind(b"\n", 0, max(0, end - size)) + 1
        last_place = last_step = None
        for match in _STEP.finditer(block[start:end]):
            last_place = _number(match), _is_in_epoch(match), start + match.start()
            last_step = last_step if last_place[1] else last_place
        if last_place is not None:
            return last_place, last_step
        end, size = start, 2 * size
    return None, None


def _last_number(pattern: re2._Regexp[bytes], piece: bytes) -> float | None:
    found = None
    for match in pattern.finditer(piece):
        found = next(text for text in match.groups() if text is not None)
    return None if found is None else float(found.replace(b",", b""))
