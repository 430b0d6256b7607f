"""The agent's side of the resumer: passes it a descriptor of each process before the process is stopped.

The resumer (`resumer_program`) resumes these processes when this process is gone, however it ended, or after a
time: for orders, `LONGEST_STOP_S` since they were last stopped. If the descriptors cannot be passed, nothing is
stopped. A resumer that has ended is restarted and given the processes that are stopped now, with the time that they
have left, because the agent may be the next to end.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from kcover_ebpf.agent.orders import resumer_program
from kcover_ebpf.agent.orders.resumer_program import KEY_BYTES, MOST_DESCRIPTORS, hold_packet
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement, Helper
from kcover_ebpf.dataclass import dataclass
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


@dataclass(slots=True)
class _Stopped:
    """Processes stopped for one incident."""

    end_ns: int = 0
    """Monotonic time at which they are resumed in any case."""
    pinned: dict[int, int] = field(default_factory=dict)
    """Pid -> our own descriptor of the process."""


class Resumer:
    """Used by the order thread, and by the main thread when it ends."""

    def __init__(self, longest_s: float = LONGEST_STOP_S) -> None:
        """`longest_s`: processes are resumed in any case, this time after their last `hold`."""
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._helper: Helper | None = None
        self._socket: socket.socket | None = None
        self._held: dict[str, _Stopped] = {}
        """Incident uid -> the processes stopped for it."""

    def start(self) -> None:
        """Start the resumer before the first thread, while all capabilities are there; raises `ActionError`."""
        with self._lock:
            try:
                self._connected()
            except ActionError:
                # if it is killed during its start, we continue
                self._connected()

    def hold(self, incident: str, pinned: Mapping[int, int]) -> None:
        """Pass the processes about to be stopped for an incident (pid -> pidfd), also those that are stopped already.

        All processes held for the incident are from now on held for `longest_s`. Raises `ActionError` if that fails.
        """
        with self._lock:
            end_ns = time.monotonic_ns() + int(self._longest_s * 1e9)
            # before they are sent: a resumer that is restarted meanwhile is given all of them
            self._keep(incident, pinned, end_ns)
            for part in _parts(list(pinned.values())):
                self._send(hold_packet(_key(incident), end_ns), part)

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
            for descriptor in self._held.pop(incident, _Stopped()).pinned.values():
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
            for stopped in self._held.values():
                for descriptor in stopped.pinned.values():
                    os.close(descriptor)
            self._held.clear()

    def _keep(self, incident: str, pinned: Mapping[int, int], end_ns: int) -> None:
        """Keep descriptors for the next resumer, up to the limit."""
        kept = self._held.setdefault(incident, _Stopped())
        kept.end_ns = end_ns
        room = RESUMER_KEPT - sum(len(stopped.pinned) for stopped in self._held.values())
        # of a pid that was kept before, either the process is the same, or the former one has ended
        again = pinned.keys() & kept.pinned.keys()
        fresh = [pid for pid in pinned if pid not in again]
        with contextlib.suppress(OSError):
            for pid in (*again, *fresh[: max(0, room)]):
                descriptor = os.dup(pinned[pid])
                if pid in kept.pinned:
                    os.close(kept.pinned[pid])
                kept.pinned[pid] = descriptor

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
                    [*command, str(theirs.fileno())],
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
            for part in _parts(list(kept.pinned.values())):
                # descriptors not sent belong to stopped processes: this agent is alive and resumes them itself
                with contextlib.suppress(OSError):
                    ours.sendmsg([hold_packet(_key(incident), kept.end_ns)], _attached(part))
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


def _parts(descriptors: Sequence[int]) -> Iterator[Sequence[int]]:
    """The descriptors in parts that fit into one packet."""
    for first in range(0, len(descriptors), MOST_DESCRIPTORS):
        yield descriptors[first : first + MOST_DESCRIPTORS]


def _attached(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def _key(incident: str) -> bytes:
    return hashlib.blake2b(incident.encode(), digest_size=KEY_BYTES).digest()
