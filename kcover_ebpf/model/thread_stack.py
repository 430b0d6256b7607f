"""The frames of one thread, as a trace streams them and an archive keeps them."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of one thread, innermost first; empty where they were not observable."""

    pid: int
    tid: int
    rank: int | None = None
    python: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
