"""Runs inside a guest: a job of two ranks that train over TCP; rank 0 holds the GPU.

No framework: what is tested is what the whole sensor makes of a device's fault, and emulation makes
a torch job take minutes to start.
"""

from __future__ import annotations

import os
import socket
import sys
import time

STEPS = 100_000


def main() -> None:
    rank = int(os.environ["RANK"])
    if rank == 0:
        os.open("/dev/nvidia0", os.O_RDWR)
        server = socket.create_server(("127.0.0.1", 29500))
        peer, _ = server.accept()
    else:
        time.sleep(1)
        peer = socket.create_connection(("127.0.0.1", 29500))
    for step in range(STEPS):
        peer.sendall(b"x" * 4096)
        left = 4096
        while left:
            left -= len(peer.recv(left))
        if step == 0:
            print(f"rank {rank} trains", file=sys.stderr, flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
