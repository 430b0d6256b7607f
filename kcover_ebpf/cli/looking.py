"""How a trace is shown, saved and played again; where its lines come from does not matter."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from kcover_ebpf.errors import CannotObserve, UsageError
from kcover_ebpf.host.cgroups import CgroupTarget
from kcover_ebpf.host.trees import PidTarget
from kcover_ebpf.trace import record, render
from kcover_ebpf.trace.record import Line

_CLEAR = "\x1b[H\x1b[2J"
_LONGEST_LINE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class How:
    """What the user wants to see."""

    output: str = "text"
    live: bool = False
    every_thread: bool = False
    save: Path | None = None

    def check(self) -> None:
        """Raise `UsageError` for wishes that exclude each other."""
        if self.live and self.output in ("json", "md"):
            raise UsageError(f"--live has no end, so -o {self.output} cannot be written; use jsonl")


def here(target: CgroupTarget | PidTarget, how: How, pods: dict[int, str] | None = None) -> int:
    """Look at a job of this host."""
    from kcover_ebpf.kernel import capabilities, features
    from kcover_ebpf.kernel.sampler import Kernel
    from kcover_ebpf.settings import Settings
    from kcover_ebpf.trace.collect import Tracer

    features.require_rights()
    settings = Settings()
    with Kernel.open(settings) as kernel:
        # the reader of kernel stacks raises the spare right, when it can
        capabilities.drop(capabilities.TRACE, spare=capabilities.SPARE)
        tracer = Tracer(kernel, target, settings, pods or {})
        with contextlib.closing(tracer):
            return show(tracer.live() if how.live else tracer.once(), how)


def replay(path: Path, how: How) -> int:
    """Show a saved look; raises `UsageError` for a file that is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return show(_lines_of(file), how)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _lines_of(file: IO[str]) -> Iterator[str]:
    found = False
    while line := file.readline(_LONGEST_LINE):
        if line.strip():
            found = True
            yield line.rstrip("\n")
    if not found:
        raise UsageError("this is no trace: the file is empty; record one with --save")


def show(lines: Iterable[str], how: How) -> int:
    """Render each line as it comes, save it if that is wanted; returns the exit code of the last look."""
    code = 0
    with contextlib.ExitStack() as stack:
        saved = stack.enter_context(_open(how.save)) if how.save is not None else None
        stack.enter_context(_ended_by_signals())
        view = _view(how)
        kept: list[Line] = []
        with contextlib.suppress(_Ended, BrokenPipeError):
            for text in lines:
                line = record.parse(text)
                if saved is not None:
                    saved.write(text + "\n")
                    saved.flush()
                code = line.exit_code if line.exit_code is not None else code
                if how.output == "json":
                    kept.append(line)
                elif how.output == "jsonl":
                    _print([text])
                elif shown := view.show(line):
                    _print(([_CLEAR + shown[0], *shown[1:]]) if _draws(how) else shown)
            if kept:
                _print([render.merged(kept)])
    return code


def _draws(how: How) -> bool:
    return how.live and sys.stdout.isatty()


def _view(how: How) -> render.TextView | render.LiveView | render.MarkdownView:
    if how.output == "md":
        return render.MarkdownView(every_thread=how.every_thread)
    if how.live:
        return render.LiveView(every_thread=how.every_thread)
    return render.TextView(every_thread=how.every_thread)


def _print(lines: Iterable[str]) -> None:
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # nobody reads any more; the interpreter must not try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise


def _open(path: Path) -> IO[str]:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


class _Ended(Exception):
    """The user has seen enough."""


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise _Ended

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def closed_early() -> CannotObserve:
    """The stream ended before the verdict."""
    return CannotObserve("the look was cut off before its verdict; try again")
