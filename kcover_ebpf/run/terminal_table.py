"""The live table: the last lines of the terminal, below a scrolling region for everything else.

The job writes to the same terminal at any time. The upper lines are therefore made a scroll region (DECSTBM), as
package managers do for their progress line, and the table is drawn below it, each time in one write. The supervisor
restores the terminal if we are killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.model.verdict import Verdict, VerdictKind, WaitRow
from kcover_ebpf.output import formatting
from kcover_ebpf.run.out import Out
from kcover_ebpf.run.sinks import Sink, TextSink

MIN_LINES = 16
_MAX_ROWS = 10
HEIGHT = _MAX_ROWS + 3
"""Lines: a title, the head of the table, rows, and the number of rows left out."""
_SAVE, _BACK, _CLEAR_BELOW, _CLEAR_LINE = "\x1b7", "\x1b8", "\x1b[J", "\x1b[K"
_RESET, _BOLD = "\x1b[0m", "\x1b[1m"
_COLOURS = {
    VerdictKind.WORKING: "\x1b[32m",
    VerdictKind.SLOW: "\x1b[33m",
    VerdictKind.UNKNOWN: "\x1b[33m",
}
_RED = "\x1b[31m"


def fits(descriptor: int) -> bool:
    """True for a terminal with room for the table and for the job's output above it."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return False
    return size.lines >= MIN_LINES and size.columns >= 40 and os.environ.get("TERM") != "dumb"


class LiveSink(Sink):
    """Keeps the table up to date, and prints everything else above it."""

    def __init__(self, out: Out, on_change: Callable[[str], None]) -> None:
        """`on_change`: called with the bytes that restore the terminal, each time they change."""
        self._out, self._on_change = out, on_change
        self._lines = TextSink(out)
        self._size = os.terminal_size((0, 0))
        self._verdict: Verdict | None = None
        self._rows: Sequence[WaitRow] = ()
        self._summary = ""

    def _restore(self) -> str:
        """Bytes that restore the whole terminal; empty while nothing was drawn."""
        if not self._size.lines:
            return ""
        top = self._size.lines - HEIGHT + 1
        return f"{_SAVE}\x1b[r\x1b[{top};1H{_CLEAR_BELOW}{_BACK}"

    def on_start(self, fields: dict[str, Any]) -> None:
        """Make room for the table, then print what is watched."""
        self._lines.on_start(fields)
        self._draw()

    def on_fact(self, fact: Fact) -> None:
        """Print it as a line above the table."""
        self._lines.on_fact(fact)

    def on_verdict(self, verdict: Verdict) -> None:
        """Print it as lines above the table, and as its title."""
        self._verdict = verdict
        self._lines.on_verdict(verdict)
        self._draw()

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """Redraw the table with these waits."""
        self._rows, self._summary = rows, summary
        self._draw()

    def on_blind(self, reason: str) -> None:
        """Print it as a line above the table."""
        self._lines.on_blind(reason)

    def on_action(self, decision: Decision, text: str) -> None:
        """Print it as a line above the table."""
        self._lines.on_action(decision, text)

    def on_end(self, fields: dict[str, Any]) -> None:
        """Restore the terminal, then print how the run ended."""
        self.close()
        self._lines.on_end(fields)

    def close(self) -> None:
        """Restore the terminal; may be called again."""
        self._out.write(self._restore())
        self._size = os.terminal_size((0, 0))
        self._on_change("")

    def _draw(self) -> None:
        if not fits(self._out.descriptor) or not self._is_foreground():
            return
        size = os.get_terminal_size(self._out.descriptor)
        top = size.lines - HEIGHT + 1
        text = ""
        if size != self._size:
            text = self._restore() + self._make_room(top)
            self._size = size
            self._on_change(self._restore())
        lines = self._content(size.columns)[:HEIGHT]
        lines += [""] * (HEIGHT - len(lines))
        drawn = "".join(
            f"\x1b[{top + index};1H{_CLEAR_LINE}{line}" for index, line in enumerate(lines)
        )
        self._out.write(f"{text}{_SAVE}{drawn}{_BACK}")

    def _is_foreground(self) -> bool:
        """False for a background job, which must not draw over what the user does now."""
        try:
            return os.tcgetpgrp(self._out.descriptor) == os.getpgrp()
        except OSError:
            return False

    @staticmethod
    def _make_room(top: int) -> str:
        # Scroll the lower part up first, so that nothing is overdrawn.
        room = "\n" * HEIGHT + f"\x1b[{HEIGHT}A"
        return f"{room}{_SAVE}\x1b[1;{top - 1}r{_BACK}"

    def _content(self, columns: int) -> list[str]:
        """Lines of the table, at most `HEIGHT`."""
        table = formatting.wait_table(self._rows)
        hidden = len(table) - 1 - _MAX_ROWS
        lines = [self._title(columns), *(line[:columns] for line in table[: _MAX_ROWS + 1])]
        if hidden > 0:
            lines.append(f"... and {hidden} more"[:columns])
        return lines

    def _title(self, columns: int) -> str:
        verdict = self._verdict
        state = formatting.printable(self._summary)
        if verdict is not None:
            state = formatting.headline(replace(verdict, time_s=time.time()))
        text = f"-- {time.strftime('%H:%M:%S')}  {state} "
        colour = "" if verdict is None else _COLOURS.get(verdict.kind, _RED)
        return f"{_BOLD}{colour}{text[:columns].ljust(columns, '-')}{_RESET}"
