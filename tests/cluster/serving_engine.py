"""A tensor-parallel engine of two pods of a LeaderWorkerSet, which waits as such engines do. One file: it is mounted.

A front end in the leader's pod takes requests and passes them to the engine, over a socket. The engine, rank 0, waits
there while none comes; the other ranks wait in a broadcast from it, however long. For each request all ranks compute
and sum up, layer by layer. Requests come five times a second while the file `load` is in a folder (/engine).
"""

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

FOLDER = Path(os.environ.get("ENGINE_FOLDER", "/engine"))
LAYERS = 8
ENDLESS = timedelta(days=30)


def front_end(engine: socket.socket) -> None:
    """Another process: requests while there is load, and each is answered before the next."""
    while True:
        if (FOLDER / "load").exists():
            engine.sendall(b"?")
            engine.recv(16)
        time.sleep(0.2)


def main() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = int(os.environ["LWS_WORKER_INDEX"]), int(os.environ["LWS_GROUP_SIZE"])
    leader = os.environ["LWS_LEADER_ADDRESS"]
    while True:
        try:
            socket.getaddrinfo(leader, None)
            break
        except socket.gaierror:  # its name is known a moment after it runs
            time.sleep(0.2)
    requests = _start_front_end() if rank == 0 else None
    url = f"tcp://{leader}:29500"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size, timeout=ENDLESS)
    order, weights = torch.zeros(1), torch.rand(256, 256)
    print(f"rank {rank} of {size} begins", flush=True)
    for number in range(1, sys.maxsize):
        if requests is not None:
            requests.recv(16)
        dist.broadcast(order, 0)
        hidden = torch.rand(32, 256)
        for _ in range(LAYERS):
            hidden = torch.tanh(hidden @ weights)
            dist.all_reduce(hidden)
        print(f"rank {rank} step {number}", flush=True)
        if requests is not None:
            requests.sendall(b"token")


def _start_front_end() -> socket.socket:
    mine, its = socket.socketpair()
    if os.fork() == 0:
        mine.close()
        front_end(its)
    its.close()
    return mine


if __name__ == "__main__":
    main()
