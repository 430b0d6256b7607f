"""Runs in a pod: `ring.py N` starts N ranks that train in a ring over TCP.

No framework, so that 64 of them fit on a small machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

_PORT = 29500
_BYTES = 65536
_STEP_S = 0.5


def launch(world: int) -> None:
    """Start all ranks, as torchrun does, and wait for them."""
    for rank in range(world):
        environ = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        subprocess.Popen([sys.executable, __file__], env=environ)
    for _ in range(world):
        os.wait()


def connected(port: int) -> socket.socket:
    """The next rank may not be there yet."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.2)


def train(rank: int, world: int) -> None:
    """Each step: compute a little, sleep for the device, hand on, and wait for the rank before."""
    server = socket.create_server(("127.0.0.1", _PORT + rank))
    after = connected(_PORT + (rank + 1) % world)
    before, _ = server.accept()
    step = 0
    while True:
        sum(range(20_000))
        time.sleep(_STEP_S)
        after.sendall(bytes(_BYTES))
        left = _BYTES
        while left:
            left -= len(before.recv(left)) or sys.exit("the rank before has gone")
        step += 1
        print(f"rank {rank} step {step}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        launch(int(sys.argv[1]))
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
