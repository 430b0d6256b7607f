"""Where the Python code of a job's ranks is, in our words.

Same rules as `facts`. Source: py-spy's `dump --json`, which reads the memory of a running interpreter and stops none.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Pid


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """One call of a Python function that has not returned; without its arguments and variables."""

    function: str
    file: str
    """As short as the interpreter's search path makes it."""
    line: int
    """0 where it is not known."""
    is_library: bool = False
    """It belongs to Python itself or to an installed package, not to the program of the user."""

    @property
    def text(self) -> str:
        """The frame for people."""
        return f"{self.function} ({self.file}:{self.line or '?'})"


@dataclass(frozen=True, slots=True)
class PythonStack:
    """The lead thread of one rank: its innermost frames of the program, and the library call that these are in."""

    pid: Pid
    frames: tuple[PythonFrame, ...]
    """Innermost first."""


@dataclass(frozen=True, slots=True)
class PythonStacksSeen:
    """The Python stacks of the ranks on this host, read once."""

    boottime_ns: int
    """When reading began."""
    stacks: tuple[PythonStack, ...] = ()
    unread: tuple[str, ...] = ()
    """What could not be read, and why."""
