"""Writes a tape while a job is watched. An error ends the recording, never the watching."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from kcover_ebpf.errors import UsageError
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.output.log_lines import blame
from kcover_ebpf.tapes.entries import (
    MOST_LINE_BYTES,
    TAPE,
    Ask,
    End,
    Header,
    Hold,
    Judge,
    Look,
    Mark,
    Start,
    kind_of,
)
from kcover_ebpf.tapes.masking import Masks
from kcover_ebpf.tunables.host import FLUSH_PASSES

_BUFFER_BYTES = 64 * 1024
_GZIP = zlib.MAX_WBITS | 16
_LEVEL = 1
"""The fastest level: tapes are so repetitive that higher ones gain little."""


class TapeWriter:
    """A tape that is being written; a `Recorder` of a judgement. Memory is bounded by one buffer and one line."""

    def __init__(self, path: Path, header: Header, on_stop: Callable[[str], None]) -> None:
        """Creates or empties the file; raises `UsageError`.

        `on_stop`: called once with the reason if recording ends early.
        """
        try:
            self._descriptor = _opened(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot record to {path}: {reason}; name another file") from error
        self._packer = zlib.compressobj(_LEVEL, wbits=_GZIP) if path.suffix == ".gz" else None
        self._masks = None if header.names else Masks()
        self._on_stop = on_stop
        self._buffer = bytearray()
        self._passes = 0
        self._left_out_count = 0
        self._is_open = True
        # complete, because defaults may change, and the tape is to be judged by those of its time
        self._line({**TAPE.encode(header), "policy": asdict(header.policy)})
        self._flush()

    def on_fact(self, fact: Fact) -> None:
        """Write a fact, masked unless names are to be kept."""
        if not self._is_open:
            return
        try:
            kept = fact if self._masks is None else self._masks.of(fact)
            self._line({"fact": kind_of(type(kept)), **TAPE.encode(kept)})
        except Exception as error:  # noqa: BLE001 - facts contain what a job wrote
            self._finish(f"{kind_of(type(fact))} cannot be recorded ({blame(error)})")

    def on_reading(self) -> None:
        """Write the mark that threads to read were requested."""
        self._mark(Look())

    def on_ask(self) -> None:
        """Write the mark that the job was asked whether to query its collective library."""
        self._mark(Ask())

    def on_judge(self, unix_offset_s: float) -> None:
        """Write the mark of a judgement, which ends a pass."""
        self._mark(Judge(unix_offset_s))
        self._passes += 1
        if self._passes % FLUSH_PASSES == 0:
            self._flush()

    def on_hold(self) -> None:
        """Write the mark that the action of the last judgement was postponed."""
        self._mark(Hold())

    def start(self, start: Start) -> None:
        """Write the mark that watching begins."""
        self._mark(start)

    def end(self, end: End) -> None:
        """Write the last line; the tape is complete then."""
        self._mark(replace(end, left_out_count=self._left_out_count))

    def close(self) -> None:
        """Write buffered data and close the file; may be called repeatedly."""
        if self._is_open:
            self._finish()

    def _finish(self, reason: str = "") -> None:
        self._flush(last=True)
        if self._is_open:
            self._stop(reason)

    def _mark(self, mark: Mark) -> None:
        if self._is_open:
            self._line({"mark": kind_of(type(mark)), **TAPE.encode(mark)})

    def _line(self, content: dict[str, object]) -> None:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
        if len(text) >= MOST_LINE_BYTES:
            self._left_out_count += 1
            return
        data = text.encode("ascii") + b"\n"
        self._buffer += data if self._packer is None else self._packer.compress(data)
        if len(self._buffer) >= _BUFFER_BYTES:
            self._write()

    def _flush(self, *, last: bool = False) -> None:
        if self._packer is not None:
            self._buffer += self._packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        self._write()

    def _write(self) -> None:
        data = memoryview(bytes(self._buffer))
        self._buffer.clear()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except BlockingIOError:
            self._stop("its reader is too slow")
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _stop(self, reason: str = "") -> None:
        self._is_open = False
        try:
            os.close(self._descriptor)
        except OSError as error:  # network file systems report failed writes here
            reason = reason or error.strerror or str(error)
        if reason:
            self._on_stop(reason)


def _opened(path: Path) -> int:
    # without O_NONBLOCK, a FIFO without a reader would block us here, and a slow reader later
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)  # an existing file keeps its own mode otherwise
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
