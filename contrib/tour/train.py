"""Four ranks that train, until one of them deadlocks: what the sensor of the tour watches.

Each step a rank computes for 0.2 s and passes its sum around a ring over TCP, as an all-reduce does. At step
HANG_AT_STEP (100) rank 2 takes a lock that it holds already. A job that is started again, as `--act restart` does,
trains on: the file MARK notes that it has hung before. Needs nothing but Python.
"""

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

RANKS = 4
CULPRIT = 2
STEP_S = 0.2
PORT = 29600
HANG_AT_STEP = int(os.environ.get("HANG_AT_STEP", "100"))
MARK = Path(os.environ.get("MARK", "/tmp/tour-has-hung"))
NUMBERS = struct.Struct("!1024d")


def neighbours(rank: int) -> tuple[socket.socket, socket.socket]:
    """Connections from the rank before and to the rank after this one."""
    server = socket.create_server(("127.0.0.1", PORT + rank))
    while True:
        try:
            after = socket.create_connection(("127.0.0.1", PORT + (rank + 1) % RANKS))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    before, _ = server.accept()
    return before, after


def all_reduce(rank: int, before: socket.socket, after: socket.socket, value: float) -> float:
    """The sum over all ranks: each passes on what came from the rank before."""
    total = value
    for _ in range(RANKS - 1):
        after.sendall(NUMBERS.pack(*[value] * 1024))
        received = before.recv(NUMBERS.size, socket.MSG_WAITALL)
        if len(received) < NUMBERS.size:
            sys.exit(f"rank {rank}: the rank before has gone")
        value = NUMBERS.unpack(received)[0]
        total += value
    return total


def compute(seconds: float) -> None:
    """Be busy for so long, as a step on a CPU is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def hang() -> None:
    """Wait for a lock that this thread holds."""
    MARK.touch()
    print(f"rank {CULPRIT} takes a lock that it holds", flush=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def train(rank: int) -> None:
    """One rank."""
    before, after = neighbours(rank)
    step = 0
    while True:
        compute(STEP_S)
        if rank == CULPRIT and step == HANG_AT_STEP and not MARK.exists():
            hang()
        total = all_reduce(rank, before, after, float(rank))
        step += 1
        if rank == 0 and step % 25 == 0:
            print(f"step {step}: sum {total:g}", flush=True)


def main() -> int:
    """Start all ranks; the exit code of the first that ends."""
    if (own := os.environ.get("RANK")) is not None:
        train(int(own))
    environment = os.environ | {"WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen([sys.executable, __file__], env=environment | {"RANK": str(number)})
        for number in range(RANKS)
    ]
    while (ended := next((rank for rank in ranks if rank.poll() is not None), None)) is None:
        time.sleep(0.2)
    for rank in ranks:
        rank.kill()
    return int(abs(ended.returncode))


if __name__ == "__main__":
    sys.exit(main())
