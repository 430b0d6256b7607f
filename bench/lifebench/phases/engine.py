"""A serving engine: a front end, an engine process, and workers that get their orders through shared memory.

The front end sends requests to the engine over a Unix socket, in bursts. The engine counts a step
in shared memory, the workers poll it, do the step with a real all-reduce and count up their own
slot. No worker has a RANK in its environment. The phase is a time without requests.
"""

import mmap
import os
import socket
import time
from datetime import timedelta

from bench.lifebench.life import event_log, phase_of

WORKERS = 3
STOP = -1


class Board:
    """The engine's step, and the last one of each worker."""

    def __init__(self) -> None:
        # A machine word is written at once; struct would clear it first, and a reader see that.
        self._numbers = memoryview(mmap.mmap(-1, 4096)).cast("q")

    def read(self, slot: int) -> int:
        """A number."""
        return self._numbers[slot]

    def write(self, slot: int, number: int) -> None:
        """Set a number."""
        self._numbers[slot] = number

    def change(self, slot: int, last: int) -> int:
        """Poll until it is another one: some turns at full speed, then in naps of a millisecond."""
        turns = 0
        while (number := self.read(slot)) == last:
            turns += 1
            time.sleep(0.001 if turns > 1000 else 0)
        return number


def work(number: int, board: Board) -> None:
    """A worker: a step for each order."""
    import torch
    import torch.distributed as dist

    from testbed.workloads.training import Options, Pace

    log = event_log(number)
    log.write("start")
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", address, timedelta(minutes=30), world_size=WORKERS, rank=number)
    pace = Pace(Options(step_s=0.2, cpu_share=0.05))
    board.write(1 + number, 1)
    step = 0
    while (step := board.change(0, step)) != STOP:
        pace.compute()
        dist.all_reduce(torch.ones(50_000))
        log.write("step", step=step)
        board.write(1 + number, 1 + step)


def engine(requests: socket.socket, board: Board) -> None:
    """For each request a step of all workers, and an answer."""
    for worker in range(WORKERS):
        board.change(1 + worker, 0)
    step = 0
    while requests.recv(16):
        step += 1
        board.write(0, step)
        for worker in range(WORKERS):
            while board.read(1 + worker) <= step:
                time.sleep(0.001)
        requests.sendall(b"token")
    board.write(0, STOP)


def serve(requests: socket.socket) -> None:
    """The front end: requests, none, requests."""

    def burst(seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            requests.sendall(b"prompt")
            requests.recv(16)

    burst(0.1)  # answered once the workers have started
    burst(20)
    with phase_of(event_log(None)):
        time.sleep(20)
    burst(10)


def main() -> None:
    """Start all."""
    board = Board()
    here, there = socket.socketpair()
    children = []
    for number in range(WORKERS + 1):
        child = os.fork()
        if child == 0:
            here.close()
            if number < WORKERS:
                there.close()
                work(number, board)
            else:
                engine(there, board)
            os._exit(0)
        children.append(child)
    there.close()
    serve(here)
    here.close()
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
