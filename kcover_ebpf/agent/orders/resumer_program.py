"""Resumes stopped processes when the agent is gone: `python -I -S resumer_program.py DESCRIPTOR`.

One file that imports nothing of ours, so that the process is small and parses nothing. The agent sends a descriptor
of each process (pidfd) before it stops it. However the agent ends, even when killed for memory, the kernel closes
its end of the socket. Messages are single packets (SOCK_SEQPACKET):

    h KEY END    hold the processes whose descriptors come with it, and all that KEY holds already, until END
    d KEY        they were resumed or killed: forget them
    KEY          8 bytes
    END          8 bytes, little-endian: nanoseconds of the monotonic clock, which both processes share

At END, processes are resumed although the agent is there: it may be stuck. The latest END of a key counts.
"""

from __future__ import annotations

import array
import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time

MOST_DESCRIPTORS = 200
"""The most descriptors in one packet; the kernel takes 253 (SCM_MAX_FD)."""
KEY_BYTES = 8
END_BYTES = 8


def hold_packet(key: bytes, end_ns: int) -> bytes:
    """Packet that holds processes until `end_ns` (monotonic clock)."""
    return b"h" + key + end_ns.to_bytes(END_BYTES, "little")


class Held:
    """Processes by key, each key with the monotonic time (ns) at which they are resumed."""

    def __init__(self) -> None:
        self._processes: dict[bytes, tuple[int, list[int]]] = {}

    def take(self, packet: bytes, descriptors: list[int]) -> None:
        """Carry out a packet; descriptors that belong to no key are closed."""
        verb, key, end = packet[:1], packet[1 : 1 + KEY_BYTES], packet[1 + KEY_BYTES :]
        if verb == b"h" and len(end) == END_BYTES:
            end_ns, held = self._processes.get(key, (0, []))
            end_ns = max(end_ns, int.from_bytes(end, "little"))
            self._processes[key] = end_ns, [*held, *descriptors]
            return
        if verb == b"d":
            descriptors = [*descriptors, *self._processes.pop(key, (0, []))[1]]
        for descriptor in descriptors:
            os.close(descriptor)

    def left_s(self) -> float | None:
        """Seconds until the next process is resumed; None if there is none."""
        ends_ns = [end_ns for end_ns, _ in self._processes.values()]
        return max(0.0, (min(ends_ns) - time.monotonic_ns()) / 1e9) if ends_ns else None

    def expire(self) -> None:
        """Resume processes that were held until their end."""
        now_ns = time.monotonic_ns()
        for key in [key for key, (end_ns, _) in self._processes.items() if end_ns <= now_ns]:
            self._release(key)

    def release_all(self) -> None:
        """Resume all processes."""
        for key in list(self._processes):
            self._release(key)

    def _release(self, key: bytes) -> None:
        for descriptor in self._processes.pop(key)[1]:
            # it has ended, or we may not signal it: the others must still be resumed
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)


def serve(connection: socket.socket, held: Held) -> None:
    """Handle packets until the other end is closed."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        left_s = held.left_s()
        if poll.poll(None if left_s is None else left_s * 1000 + 1):
            room = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
            packet, attached, _, _ = connection.recvmsg(64, room)
            if not packet:
                return
            held.take(packet, _descriptors(attached))
        held.expire()


def _descriptors(attached: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in attached:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return list(found)


def main(arguments: list[str]) -> None:
    """Parse the arguments and serve; the exit code is always 0."""
    # signals of a terminal, or of the container's end, reach the agent, which ends this process through its socket
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = Held()
    connection = socket.socket(fileno=int(arguments[0]))
    connection.send(b"r")
    try:
        serve(connection, held)
    finally:
        held.release_all()


if __name__ == "__main__":
    main(sys.argv[1:])
