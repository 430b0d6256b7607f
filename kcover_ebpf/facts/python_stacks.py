"""Python stacks of a job's ranks, as facts.

The rules of `facts` apply. Source: py-spy's `dump --json`, which reads the memory of a running interpreter and does not
stop it.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Pid


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """One call of a Python function that has not returned; without its arguments and variables."""

    function: str
    file: str
    """Path as short as the interpreter's search path allows."""
    line: int
    """Line number; 0 if unknown."""
    is_library: bool = False
    """It belongs to Python itself or to an installed package, not to the program of the user."""

    @property
    def text(self) -> str:
        """The frame as FUNCTION (FILE:LINE)."""
        return f"{self.function} ({self.file}:{self.line or '?'})"


@dataclass(frozen=True, slots=True)
class PythonStack:
    """The lead thread of one rank: its innermost frames in the program, and the library call that it made from them."""

    pid: Pid
    frames: tuple[PythonFrame, ...]
    """Frames, innermost first."""


@dataclass(frozen=True, slots=True)
class PythonStacksSeen:
    """The Python stacks of the ranks on this host, read once."""

    boottime_ns: int
    """Boottime at which reading began."""
    stacks: tuple[PythonStack, ...] = ()
    unread: tuple[str, ...] = ()
    """Stacks that could not be read, each with the reason."""
