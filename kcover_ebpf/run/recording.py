"""The tape of a run: start and end arrive as at any sink, inputs of judgements at its writer."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from kcover_ebpf import __version__
from kcover_ebpf.host import procfs
from kcover_ebpf.run.options import RunOptions
from kcover_ebpf.run.sinks import Sink
from kcover_ebpf.tapes.entries import NAMELESS, SCHEMA, End, Header, Start
from kcover_ebpf.tapes.writer import TapeWriter


class Tape(Sink):
    """A tape that is being recorded."""

    def __init__(self, options: RunOptions, path: Path) -> None:
        """Raises `UsageError` if the file cannot be written."""
        names = options.record_names
        header = Header(
            schema=SCHEMA,
            version=__version__,
            machine=os.uname().machine,
            policy=options.settings.policy,
            act=options.settings.act,
            names=names,
            job=options.name if names else NAMELESS,
        )
        self.writer = TapeWriter(path, header, _say_stopped)

    def on_start(self, fields: dict[str, Any]) -> None:
        """Record that watching starts, or starts again after a restart."""
        known = ("restart", "pid", "world_size")
        more = {name: fields[name] for name in known if name in fields}
        unobserved = tuple(fields.get("unobserved", ()))
        offset_s = procfs.unix_offset_s()
        self.writer.start(Start(time.time(), offset_s, unobserved=unobserved, **more))

    def on_end(self, fields: dict[str, Any]) -> None:
        """Record the end of the run, and close the tape."""
        known = ("exit_code", "job_code", "restart_count", "duration_s")
        more = {name: fields[name] for name in known}
        self.writer.end(End(time=time.time(), reason=fields["reason"].value, **more))
        self.writer.close()


def _say_stopped(reason: str) -> None:
    try:
        sys.stderr.write(f"kcover-ebpf run: recording stopped: {reason}; the job continues\n")
        sys.stderr.flush()
    except OSError:  # it is no longer read
        return
