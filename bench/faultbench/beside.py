"""A command that runs repeatedly during the bench, such as an inspection of the node."""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

PAUSE_S = 5.0
"""From the end of one run to the start of the next: far more often than any schedule, so that each job meets some."""


class Beside:
    """Runs `command` again and again while its block lasts."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._ends: Counter[int] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def so_far(self) -> dict[str, Any]:
        """The command, and how many of its runs ended with which exit code."""
        ends = {str(code): count for code, count in sorted(self._ends.items())}
        return {"command": self._command, "ends": ends}

    def _repeat(self) -> None:
        quiet = subprocess.DEVNULL
        while not self._stop.is_set():
            ended = subprocess.run(
                self._command, check=False, stdin=quiet, stdout=quiet, stderr=quiet
            )
            self._ends[ended.returncode] += 1
            self._stop.wait(PAUSE_S)
