"""A parameter server (rank 0) and workers over TCP: `sync`, where a step needs all, or `async`, where none waits.

sync: worker 2 accumulates for 10 s what the others did at once. async: worker 1 waits 15 s for its
part of the data, and the others train on.
"""

import os
import selectors
import socket
import sys
import time

import service

from bench.lifebench.life import event_log, phase_of
from testbed.workloads.training import Options, Pace

SIZE = 1 << 16
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
LOG = event_log(RANK)


def received(connection: socket.socket) -> bool:
    """Read one message; False at the end."""
    left = SIZE
    while left and (data := connection.recv(left)):
        left -= len(data)
    return not left


def serve(sync: bool) -> None:
    """Answer gradients with weights: each at once, or all once the last has come."""
    with socket.create_server(ADDRESS) as server, selectors.DefaultSelector() as selector:
        for _ in range(WORLD - 1):
            selector.register(server.accept()[0], selectors.EVENT_READ)
        waiting: list[socket.socket] = []
        while selector.get_map():
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if not received(connection):
                    selector.unregister(connection)
                    continue
                waiting.append(connection)
            if not sync or len(waiting) == WORLD - 1:
                for connection in waiting:
                    connection.sendall(bytes(SIZE))
                waiting.clear()


def connected() -> socket.socket:
    """A connection to the server, once it listens."""
    while True:
        try:
            return socket.create_connection(ADDRESS)
        except ConnectionRefusedError:
            time.sleep(0.2)


def work(sync: bool) -> None:
    """Train with it."""
    pace = Pace(Options(step_s=0.4, cpu_share=0.05))
    connection = connected()
    number = 0

    def train(seconds: float) -> None:
        nonlocal number
        for _ in range(round(seconds / 0.4)):
            pace.compute()
            connection.sendall(bytes(SIZE))
            received(connection)
            LOG.write("step", step=number)
            number += 1

    train(18)
    if sync and RANK == 2:
        with phase_of(LOG):
            pace.burn(10)
    if not sync and RANK == 1:
        with phase_of(LOG):
            service.get("/late/15")
    train(10)
    connection.close()


LOG.write("start")
if RANK == 0:
    serve(sys.argv[1] == "sync")
else:
    work(sys.argv[1] == "sync")
LOG.write("done")
