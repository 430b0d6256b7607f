"""A training of two ranks on one GPU: `training RANK PORT FAULT AFTER_S FILE`.

A step consists of work on the host, a kernel, and a megabyte in each direction between the ranks. Rank 1 has the
fault after AFTER_S seconds of steps, and writes the time to FILE (unix seconds).

`training alone FILE`: only kernels; for each step a line with its end (CLOCK_MONOTONIC) and length in seconds.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from tools.gpucheck.cuda import ENDLESS_NS, CudaError, Driver, Scheduling, Work
from tools.gpucheck.plan import NotPossible

_HOST_S, _KERNEL_NS, _PAYLOAD_BYTES = 0.03, 60_000_000, 1 << 20
_SHORT_KERNEL_NS = 2_000_000
_CONNECT_S = 60.0
_LINGER_S = 3.0
"""Pause after a device error, so that the driver's reports can be distinguished from the exit of
the rank."""
_NOWHERE = 0x10


def _connect(rank: int, port: int) -> socket.socket:
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(_CONNECT_S)
            return server.accept()[0]
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def _exchange(peer: socket.socket) -> None:
    sender = threading.Thread(target=peer.sendall, args=(bytes(_PAYLOAD_BYTES),))
    sender.start()
    left = _PAYLOAD_BYTES
    while left:
        got = len(peer.recv(min(left, 1 << 16)))
        if not got:
            raise NotPossible("the other rank has gone")
        left -= got
    sender.join()


def _compute(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(range(500))


def _fail(fault: str, driver: Driver, work: Work) -> None:
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif fault == "endless":
        work.wait(ENDLESS_NS)
    elif fault == "address":
        work.write_to(_NOWHERE)
    elif fault == "misaligned":
        work.write_to(driver.allocate(4096) + 1)


def _start(scheduling: Scheduling = Scheduling.AUTO) -> tuple[Driver, Work]:
    driver = Driver()
    driver.initialize()
    driver.use_primary_context(scheduling)
    work = Work(driver)
    work.wait(1000)
    work.synchronize()
    return driver, work


def rank(number: int, port: int, fault: str, after_s: float, file: Path) -> None:
    fault, _, scheduling = fault.partition("-")
    driver, work = _start(Scheduling[scheduling.upper() or "AUTO"])
    peer = _connect(number, port)
    began_s = time.monotonic()
    while True:
        _compute(_HOST_S)
        if number == 1 and fault != "none" and time.monotonic() - began_s > after_s:
            file.write_text(f"{time.time()}\n")
            _fail(fault, driver, work)
        work.wait(_KERNEL_NS)
        work.synchronize()
        _exchange(peer)


def alone(file: Path) -> None:
    _, work = _start()
    print("stepping", flush=True)
    with file.open("w", buffering=1) as lines:
        while True:
            began_s = time.monotonic()
            _compute(_SHORT_KERNEL_NS / 1e9)
            work.wait(_SHORT_KERNEL_NS)
            work.synchronize()
            ended_s = time.monotonic()
            lines.write(f"{ended_s:.6f} {ended_s - began_s:.6f}\n")


def main(arguments: list[str]) -> int:
    try:
        if arguments[0] == "alone":
            alone(Path(arguments[1]))
        number, port, fault, after_s, file = arguments
        rank(int(number), int(port), fault, float(after_s), Path(file))
    except CudaError as error:
        print(f"rank: {error}", file=sys.stderr, flush=True)
        time.sleep(_LINGER_S)
        # immediately: an orderly shutdown would close the connection first, and the other rank
        # would be gone before this one
        os._exit(1)
    except (NotPossible, OSError) as problem:
        print(f"rank: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
