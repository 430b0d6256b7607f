"""A note in the agent's state directory: a drill asks the agent to judge as if an Xid named this process.

User space cannot write a kernel log line that the agent believes, so a drill asks the agent itself; only root can
write into its state directory. The agent takes a note once, at its next pass.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.host.bounded import read_bytes
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.agent import DRILL_NOTE_TAKEN_S, DRILL_POLL_S

_NOTE = "drill-xid.json"
_MOST_BYTES = 64


class DrillNote:
    """A request that a drill writes and the agent of the node takes."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _NOTE

    def leave(self, pid: Pid) -> None:
        """Write the note and wait until the agent has taken it; if it does not, remove it and raise `CannotObserve`."""
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(pid), encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            raise CannotObserve(f"cannot write {self._path}: {error.strerror}") from error
        deadline_s = time.monotonic() + DRILL_NOTE_TAKEN_S
        while self._path.exists():
            if time.monotonic() >= deadline_s:
                self._path.unlink(missing_ok=True)
                raise CannotObserve(
                    f"the agent of this node does not read {self._path}; is its --state-dir the same?"
                )
            time.sleep(DRILL_POLL_S)

    def take(self) -> Pid | None:
        """Pid in a note written since the last call; None if there is no note or it is not a number."""
        if not self._path.exists():
            return None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            read = json.loads(read_bytes(self._path, _MOST_BYTES))
            self._path.unlink(missing_ok=True)
            return Pid(read) if type(read) is int else None
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return None
