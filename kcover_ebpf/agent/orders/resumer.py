"""The agent's side of the resumer: passes it a descriptor of each process before the process is stopped.

The resumer (`resumer_program`) resumes these processes when this process is gone, however it ended, or after a
time: for orders, `LONGEST_STOP_S`. If the descriptors cannot be passed, nothing is stopped. A resumer that has
ended is restarted and given the processes that are stopped now, because the agent may be the next to end.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kcover_ebpf.agent.orders import resumer_program
from kcover_ebpf.agent.orders.resumer_program import MOST_DESCRIPTORS
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement, Helper
from kcover_ebpf.errors import ActionError
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.tunables.agent import (
    LONGEST_STOP_S,
    RESUMER_KEPT,
    RESUMER_START_S,
    RESUMER_TAKES_S,
)

_LOG = logging.getLogger(__name__)
_CONFINEMENT = Confinement(
    data_bytes=32 << 20,
    cpu_s=24 * 3600,
    kept=frozenset({Capability.KILL}),
    open_files=65536,
    # needed to send signals
    filtered=False,
    with_parent=False,
    out_of_memory_score=-1000,
)


class Resumer:
    """Used by the order thread, and by the main thread when it ends."""

    def __init__(self, longest_s: float = LONGEST_STOP_S) -> None:
        """`longest_s`: processes are resumed after this time in any case."""
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._helper: Helper | None = None
        self._socket: socket.socket | None = None
        self._held: dict[str, list[int]] = {}
        """Incident uid -> our own descriptors of the processes stopped for it."""

    def start(self) -> None:
        """Start the resumer before the first thread, while all capabilities are there; raises `ActionError`."""
        with self._lock:
            try:
                self._connected()
            except ActionError:
                # if it is killed during its start, we continue
                self._connected()

    def hold(self, incident: str, descriptors: Sequence[int]) -> None:
        """Pass pidfds of processes about to be stopped for an incident; raises `ActionError` if that fails."""
        with self._lock:
            for first in range(0, len(descriptors), MOST_DESCRIPTORS):
                self._send(b"h" + _key(incident), descriptors[first : first + MOST_DESCRIPTORS])
            self._keep(incident, descriptors)

    def tend(self) -> None:
        """Restart the resumer if it has ended, and pass it the stopped processes.

        Never fails: if it cannot be started, the next `hold` raises.
        """
        with self._lock, contextlib.suppress(ActionError, OSError):
            if self._helper is not None and self.pid is None:
                self._connected()

    def drop(self, incident: str) -> None:
        """Forget processes that were resumed or killed; never fails: at worst they are resumed once more later."""
        with self._lock, contextlib.suppress(ActionError, OSError):
            for descriptor in self._held.pop(incident, ()):
                os.close(descriptor)
            if self._socket is not None:
                self._socket.sendmsg([b"d" + _key(incident)])

    @property
    def pid(self) -> int | None:
        """Pid of the resumer; None while none runs."""
        running = self._helper
        return running.pid if running is not None and running.exit_code is None else None

    def close(self) -> None:
        """End the resumer, which resumes everything that it still has."""
        with self._lock:
            self._disconnect()
            for descriptor in itertools.chain(*self._held.values()):
                os.close(descriptor)
            self._held.clear()

    def _keep(self, incident: str, descriptors: Sequence[int]) -> None:
        """Keep descriptors for the next resumer, up to the limit."""
        room = RESUMER_KEPT - sum(map(len, self._held.values()))
        kept = self._held.setdefault(incident, [])
        with contextlib.suppress(OSError):
            for descriptor in descriptors[: max(0, room)]:
                kept.append(os.dup(descriptor))

    def _send(self, packet: bytes, descriptors: Sequence[int]) -> None:
        for is_last in (False, True):
            connection = self._connected()
            try:
                connection.sendmsg([packet], _attached(descriptors))
                return
            except OSError as error:
                self._disconnect()
                if is_last:
                    text = f"the process that would resume them is not running: {error.strerror or error}"
                    raise ActionError(text) from error

    def _connected(self) -> socket.socket:
        if self._socket is not None and self.pid is not None:
            return self._socket
        self._disconnect()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = str(Path(resumer_program.__file__))
        command = [sys.executable, "-I", "-S", "-B", program]
        try:
            with theirs:
                self._helper = helper.start(
                    [*command, str(theirs.fileno()), str(self._longest_s)],
                    _CONFINEMENT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    passed=(theirs.fileno(),),
                    session=True,
                )
            ours.settimeout(RESUMER_START_S)
            if ours.recv(1) != b"r":
                raise OSError(0, "it ended at once")
        except OSError as error:
            ours.close()
            self._disconnect()
            text = f"the process that would resume them does not start: {error.strerror or error}"
            raise ActionError(text) from error
        ours.settimeout(RESUMER_TAKES_S)
        self._socket = ours
        for incident, kept in self._held.items():
            for first in range(0, len(kept), MOST_DESCRIPTORS):
                part = kept[first : first + MOST_DESCRIPTORS]
                # descriptors not sent belong to stopped processes: this agent is alive and resumes them itself
                with contextlib.suppress(OSError):
                    ours.sendmsg([b"h" + _key(incident)], _attached(part))
        return ours

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._helper is not None:
            # it ends by itself, once it has resumed everything
            self._helper.wait(time.monotonic() + RESUMER_TAKES_S)
            if not self._helper.end():
                _LOG.warning("resumer process %d did not exit", self._helper.pid)
            self._helper = None


def _attached(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def _key(incident: str) -> bytes:
    return hashlib.blake2b(incident.encode(), digest_size=8).digest()
