"""Runs inside a guest: a job of two ranks that train over TCP; rank 0 holds the GPU.

JOB_ADDRESS is where rank 0 listens, JOB_GPU the device file it opens (empty: none). After JOB_STUCK
steps (0: never) rank 0 makes a call of the stub driver that sleeps in state D. Into the file JOB_LOG, if
there is one, rank 0 writes every step.

No framework: what is tested is what the whole sensor makes of a device's fault, and emulation makes
a torch job take minutes to start.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time

STEPS = 100_000
STUCK = int(os.environ.get("JOB_STUCK", "0"))
LOG = os.environ.get("JOB_LOG", "")
ADDRESS, PORT = os.environ.get("JOB_ADDRESS", "127.0.0.1"), 29500


def connected() -> socket.socket:
    """Rank 0 may not be there yet."""
    while True:
        try:
            return socket.create_connection((ADDRESS, PORT))
        except OSError:
            time.sleep(0.3)


def noted(log: int, step: int) -> None:
    """As a training writes its metrics: to a server, if that is where the file is."""
    os.write(log, b"step %d\n" % step)
    os.fsync(log)


def main() -> None:
    rank = int(os.environ["RANK"])
    if rank == 0:
        name = os.environ.get("JOB_GPU", "/dev/nvidia0")
        gpu = os.open(name, os.O_RDWR) if name else -1
        server = socket.create_server((ADDRESS, PORT))
        peer, _ = server.accept()
    else:
        peer = connected()
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if LOG and rank == 0 else -1
    for step in range(STEPS):
        if rank == 0 and step == STUCK > 0:
            fcntl.ioctl(gpu, 102, 120_000)
        if log >= 0:
            noted(log, step)
        peer.sendall(b"x" * 4096)
        left = 4096
        while left:
            got = peer.recv(left)
            if not got:
                sys.exit("the other rank has gone")
            left -= len(got)
        if step == 0:
            print(f"rank {rank} trains", file=sys.stderr, flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
