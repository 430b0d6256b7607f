"""Shows, saves and replays a trace, independently of where its lines come from."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from kcover_ebpf.errors import CannotObserve, UsageError
from kcover_ebpf.host.cgroups import CgroupTarget
from kcover_ebpf.host.process_tree import PidTarget
from kcover_ebpf.trace import records, render
from kcover_ebpf.trace.options import TraceOptions
from kcover_ebpf.trace.pod_target import PodTarget
from kcover_ebpf.trace.records import Line
from kcover_ebpf.tunables.trace import NEVER_LATE_S

_CLEAR = "\x1b[H\x1b[2J"
_LONGEST_LINE = 64 * 1024 * 1024


def here(target: CgroupTarget | PidTarget | PodTarget, options: TraceOptions) -> int:
    """Trace a job of this host."""
    from kcover_ebpf.host import capabilities
    from kcover_ebpf.kernel import features
    from kcover_ebpf.kernel.sampler import KernelSampler
    from kcover_ebpf.settings import Settings
    from kcover_ebpf.trace.tracer import Tracer

    features.require_privileges()
    # a run judges by the kernel's own times: passes missed on a busy machine lose nothing
    settings = Settings(period_s=NEVER_LATE_S)
    with KernelSampler.open(settings) as kernel:
        # the reader of kernel stacks raises the spare capability, if it can
        capabilities.drop(capabilities.TRACE, spare=capabilities.SPARE)
        tracer = Tracer(kernel, target, settings)
        with contextlib.closing(tracer):
            return show(
                tracer.live() if options.live else tracer.once(brief=options.brief), options
            )


def replay(path: Path, options: TraceOptions) -> int:
    """Show a saved trace; raises `UsageError` if the file is not one."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return show(_lines_of(file), options)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _lines_of(file: IO[str]) -> Iterator[str]:
    found = False
    while line := file.readline(_LONGEST_LINE):
        if line.strip():
            found = True
            yield line.rstrip("\n")
    if not found:
        raise UsageError("not a trace: the file is empty; record one with --save")


def show(lines: Iterable[str], options: TraceOptions) -> int:
    """Render each line as it arrives, and save it if requested; returns the exit code.

    The exit code is that of the last run; 128 + signal if a signal ended it before its verdict. Raises
    `CannotObserve` if the lines end before a verdict.
    """
    code: int | None = None
    with contextlib.ExitStack() as stack:
        saved = stack.enter_context(_open(options.save)) if options.save is not None else None
        stack.enter_context(_ended_by_signals())
        screen = _Screen(options)
        try:
            for text in lines:
                line = records.parse(text)
                if saved is not None:
                    saved.write(text + "\n")
                    saved.flush()
                code = line.exit_code if line.exit_code is not None else code
                screen.show(text, line)
            screen.end()
        except _Ended as ended:
            return 128 + ended.number if code is None else code
        except BrokenPipeError:
            return 128 + signal.SIGPIPE if code is None else code
    if code is None:
        raise CannotObserve("the trace was cut off before its verdict; try again")
    return code


class _Screen:
    """Standard output, in the requested form."""

    def __init__(self, options: TraceOptions) -> None:
        self._options = options
        self._view = _view(options)
        self._kept: list[Line] = []

    def show(self, text: str, line: Line) -> None:
        """Display one line of the stream."""
        if self._options.output == "json":
            self._kept.append(line)
        elif self._options.output == "jsonl":
            _print([text])
        elif shown := self._view.show(line):
            draws = self._options.live and sys.stdout.isatty()
            _print([_CLEAR + shown[0], *shown[1:]] if draws else shown)

    def end(self) -> None:
        """The stream has ended: display what is left."""
        if self._kept:
            _print([render.merged(self._kept)])


def _view(options: TraceOptions) -> render.TextView | render.LiveView | render.MarkdownView:
    if options.output == "md":
        return render.MarkdownView(every_thread=options.every_thread)
    if options.live:
        return render.LiveView(every_thread=options.every_thread)
    return render.TextView(every_thread=options.every_thread)


def _print(lines: Iterable[str]) -> None:
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader is gone; the interpreter must not try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise


def _open(path: Path) -> IO[str]:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


class _Ended(BaseException):
    """The user ended the trace. Not an `Exception`: reading code would treat that as a broken connection."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    def end(number: int, _frame: FrameType | None) -> None:
        raise _Ended(number)

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
