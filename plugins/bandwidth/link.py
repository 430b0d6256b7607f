"""Messages between the pods of a job: one line of JSON each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PORT = 29555
"""No framework uses this port by default: if the job is already running, nothing answers there."""
GATHER_S = 120.0
"""Seconds within which the pods of a job must start. If an image is pulled first they may not, and
then nothing is measured."""
MEASURE_S = 180.0
"""Seconds for everything after that: 512 MiB take seconds at any usable bandwidth, a start over 64
nodes half a minute."""
LINK_S = GATHER_S + MEASURE_S
_LINE_BYTES = 1 << 16


class MeasuredLink:
    """One side of a connection; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._lines = connection.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; raises OSError if the other side has disconnected."""
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Messages until the other side disconnects, is silent for too long, or sends something else."""
        while True:
            try:
                line = self._lines.readline(_LINE_BYTES)
                message = json.loads(line) if line.endswith(b"\n") else None
            except (OSError, ValueError, RecursionError):
                return
            if not isinstance(message, dict):
                return
            yield message

    def close(self) -> None:
        """Shut down and close the connection in both directions."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._connection.close()


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process with its whole session.

    Open MPI's daemon puts each process that it starts into another group.
    """
    if child.poll() is None:
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError):
                # state, parent, group, session; parsed here, because only this package is copied
                # into the pod
                session = file.read_text().rpartition(")")[2].split()[3]
                if int(session) == child.pid:
                    os.kill(int(file.parent.name), signal.SIGKILL)
