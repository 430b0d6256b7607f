"""A rank of a small training whose ranks send each other a few bytes a step, in the main thread.

odd_rank.py STEPS ODD WAY: after STEPS steps the rank ODD is caught at a lock ("lock") or in a loop ("loop"); the
others wait for its message. Ports are BASE + rank.
"""

import os
import socket
import sys
import threading
import time

RANK, WORLD, BASE = (int(os.environ[text]) for text in ("RANK", "WORLD_SIZE", "BASE"))
HOST = "127.0.0.1"
MESSAGE = b"x" * 4096
FOUND = threading.Lock()


def connected() -> tuple[socket.socket, socket.socket]:
    """The ranks before and after this one in the ring."""
    server = socket.create_server((HOST, BASE + RANK))
    deadline = time.monotonic() + 20
    while True:
        try:
            after = socket.create_connection((HOST, BASE + (RANK + 1) % WORLD))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    before, _ = server.accept()
    return before, after


def receive(peer: socket.socket) -> None:
    left = len(MESSAGE)
    while left:
        left -= len(peer.recv(left))


def exchange(before: socket.socket, after: socket.socket) -> None:
    """Two rounds, so that no rank is a step ahead of another."""
    for _ in range(WORLD):
        after.sendall(MESSAGE)
        receive(before)


def save_metrics() -> None:
    FOUND.acquire()


def search() -> None:
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def main() -> None:
    steps, odd, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    before, after = connected()
    FOUND.acquire()
    for _ in range(steps):
        time.sleep(0.1)
        exchange(before, after)
    if odd == RANK:
        {"lock": save_metrics, "loop": search}[way]()
    exchange(before, after)


if __name__ == "__main__":
    main()
