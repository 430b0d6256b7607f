"""The helper programs of `trace` that read stacks: py-spy for Python frames, our own reader for the others.

None of them stops a thread. All of them are confined (`confined.helper`), and are killed when their time is up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement, Helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.tunables.host import HELPER_CPU_S
from kcover_ebpf.watching import py_spy
from kcover_ebpf.watching.py_spy import Spied, SpiedThread, Spies, Thread

_READER = Confinement(
    data_bytes=96 << 20,
    cpu_s=HELPER_CPU_S,
    # it drops its privileges itself, once it has the kernel's stacks
    kept=frozenset(
        {
            Capability.SYS_ADMIN,
            Capability.SYS_PTRACE,
            Capability.DAC_READ_SEARCH,
            Capability.SYSLOG,
        }
    ),
    open_files=1024,
)
_OUTPUT_BYTES = 8 << 20


@dataclass(slots=True)
class Frames:
    """Frames that the helpers found; `blind`: what they could not read, and why."""

    python: dict[Thread, SpiedThread] = field(default_factory=dict)
    native: dict[Thread, tuple[str, ...]] = field(default_factory=dict)
    kernel: dict[Thread, tuple[str, ...]] = field(default_factory=dict)
    blind: list[str] = field(default_factory=list)

    def stack(self, pid: int, tid: int, rank: int | None) -> Stack:
        """All frames that are known of one thread."""
        key = pid, tid
        none: tuple[str, ...] = ()
        spied = self.python.get(key)
        python = () if spied is None else python_lines(spied)
        return Stack(pid, tid, rank, python, self.native.get(key, none), self.kernel.get(key, none))


def python_lines(thread: SpiedThread) -> tuple[str, ...]:
    """Its Python frames as text; the first line says whether it holds the interpreter lock."""
    lock = ("holds the interpreter lock",) if thread.owns_gil else ()
    return lock + tuple(frame.text for frame in thread.frames)


class Helpers:
    """The helper processes of one run; started at once, collected later."""

    def __init__(
        self, threads: Sequence[tuple[int, int, str]], confinement: Confinement | None = None
    ) -> None:
        """`threads`: (pid, tid, name of the program) to read, the most important first.

        `confinement`: of py-spy; None: its default.
        """
        self._threads = [(pid, tid) for pid, tid, _ in threads]
        interpreters = (pid for pid, _, program in threads if py_spy.is_python(program))
        self._spies = Spies(interpreters, confinement)
        text = "".join(f"{pid} {tid}\n" for pid, tid in self._threads)
        command = [sys.executable, "-m", "kcover_ebpf.trace.native_frames"]
        self._helper: Helper | None = None
        try:
            self._helper = helper.start(command, _READER, stdin=subprocess.PIPE)
            os.write(self._helper.stdin, text.encode())
        except OSError:
            return
        self._helper.close_stdin()

    def collect(self, limit_s: float, numbers: Mapping[int, Mapping[int, int]]) -> Frames:
        """Results that are there within `limit_s`; `numbers`: pid -> thread ids in its pid namespace -> ours."""
        end_s = time.monotonic() + limit_s
        spied: Spied = self._spies.collect(limit_s, numbers)
        frames = Frames(python=spied.threads, blind=spied.blind)
        self._take_native(frames, end_s)
        self.close()
        return frames

    def _take_native(self, frames: Frames, end_s: float) -> None:
        out, why = b"", "it did not start"
        if self._helper is not None:
            out, why = self._helper.output(end_s, _OUTPUT_BYTES)
        for key, native, kernel, blind in parse_native(out):
            frames.native[key], frames.kernel[key] = native, kernel
            if blind and f"native frames ({blind})" not in frames.blind:
                frames.blind.append(f"native frames ({blind})")
        missing = len(self._threads) - len(frames.native)
        if missing > 0:
            frames.blind.append(
                f"native frames of {missing} threads ({why or 'it ran out of time'})"
            )
        if frames.kernel and not any(frames.kernel.values()):
            frames.blind.append("kernel frames (they need CAP_SYS_ADMIN)")

    def close(self) -> None:
        """Kill the helpers that still run."""
        self._spies.close()
        if self._helper is not None:
            self._helper.end()


def parse_native(
    out: bytes,
) -> Iterator[tuple[Thread, tuple[str, ...], tuple[str, ...], str]]:
    """(thread, native frames, kernel frames, what it could not read) of each line of our reader; others are skipped."""
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            answer = json.loads(line)
            key = int(answer["pid"]), int(answer["tid"])
            native, kernel = (tuple(map(str, answer[text])) for text in ("native", "kernel"))
            yield key, native, kernel, str(answer["blind"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
