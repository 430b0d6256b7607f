"""Logging of agent and controller: one line per message on stderr, with the standard `logging`."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kcover_ebpf.output.formatting import printable
from kcover_ebpf.tunables.host import SAME_LINE_S

# subjects remembered: some have a tenant's names in them
_SUBJECTS: Final = 512


def configure(level: str) -> None:
    """Log to stderr from this level on; `level` is a name that `logging` knows, in any case."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(Repeats(time.monotonic))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def about(subject: str) -> dict[str, str]:
    """The `extra` of a message that may repeat many times a second: see `Repeats`."""
    return {"subject": subject}


class OneLine(logging.Formatter):
    """A message is one line without control characters: parts of it are names that the job chose."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%SZ"
    default_msec_format = ""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """The line, without a traceback that may follow."""
        return printable(super().formatMessage(record))


class Repeats(logging.Filter):
    """Lets a message about a subject pass once, and again when it changes or after a minute."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._passed: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a message without a subject, and for one with news."""
        subject = getattr(record, "subject", None)
        if subject is None:
            return True
        text, now_s = record.getMessage(), self._clock_s()
        with self._lock:
            before = self._passed.get(subject)
            if before is not None and before[0] == text and now_s - before[1] <= SAME_LINE_S:
                return False
            self._passed[subject] = text, now_s
            self._passed.move_to_end(subject)
            if len(self._passed) > _SUBJECTS:
                self._passed.popitem(last=False)
        return True


def blame(error: BaseException) -> str:
    """Kind, message and place of an error, on one line."""
    import traceback  # rarely needed, and not cheap

    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}{place}"
