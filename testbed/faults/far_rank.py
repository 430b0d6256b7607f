"""A rank in a pod, alone on its node, that trains on a stub of a GPU: far_rank.py FOLDER.

FOLDER is shared by all ranks: the stub's library; the memory in which they launch; `fault` ("lock 2", "skip 2"), which
that rank does instead of its next launch; `first-RANK`, when a rank had made its first step. The ranks have no
connections but one each to the store of rank 0. With RAS=1 each of them answers as NCCL's RAS does.
"""

import ctypes
import json
import mmap
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from testbed.driver.fake_ras_server import FakeRasServer, json_report

FOLDER = Path(sys.argv[1])
RANK, WORLD, MASTER = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER"]
STORE_PORT, RAS_PORT = 29400, 28028
WORK_S, DEVICE_NS = 0.1, ctypes.c_int64(200_000_000)
Words = ctypes.Array[ctypes.c_uint32]


def shared_memory() -> Words:
    """The last step that each rank launched."""
    with (FOLDER / "memory").open("r+b") as file:
        return (ctypes.c_uint32 * WORLD).from_buffer(mmap.mmap(file.fileno(), 4096))


def met(words: Words) -> tuple[int, list[socket.socket]]:
    """The number of the first step, which rank 0 gives once all are there, and what has to stay open."""
    if RANK == 0:
        server = socket.create_server(("", STORE_PORT))
        others = [server.accept()[0] for _ in range(WORLD - 1)]
        first = max(words) + 1
        for other in others:
            other.sendall(f"{first}\n".encode())
        return first, [server, *others]
    while True:
        try:
            store = socket.create_connection((MASTER, STORE_PORT), 5)
            store.settimeout(None)
            if line := store.makefile().readline():
                return int(line), [store]
        except OSError:
            pass
        time.sleep(0.2)


class FakeRas(FakeRasServer):
    """Answers with the launches of the moment."""

    def __init__(self, words: Words) -> None:
        self.words = words
        super().__init__([""], port=RAS_PORT)

    def _talk(self, stream: Any, report: str) -> None:
        table = json.loads(json_report(list(self.words), pid_of=lambda _: 1))
        for rank in table["communicators"][0]["ranks"]:
            rank["host"] = (FOLDER / f"address-{rank['rank']}").read_text()
        super()._talk(stream, json.dumps(table))


def fault() -> str:
    """What this rank is to do now; once."""
    path = FOLDER / "fault"
    try:
        kind, rank = path.read_text().split()
    except FileNotFoundError:
        return ""
    if int(rank) != RANK:
        return ""
    path.unlink()
    return kind


def main() -> None:
    words = shared_memory()
    step, kept = met(words)
    (FOLDER / f"address-{RANK}").write_text(kept[-1].getsockname()[0])
    if os.environ["RAS"] == "1":
        FakeRas(words)
    synchronize = ctypes.CDLL(str(FOLDER / "libcuda.so.1")).cuStreamSynchronize
    is_first = True
    while True:
        end = time.monotonic() + WORK_S
        while time.monotonic() < end:
            sum(range(500))
        kind = fault()
        if kind == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        if kind != "skip":
            words[RANK] = step
        synchronize(words, WORLD, step, DEVICE_NS)
        if is_first:
            (FOLDER / f"first-{RANK}").write_text(str(time.time()))
            is_first = False
        step += 1


if __name__ == "__main__":
    main()
