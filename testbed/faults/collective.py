"""A rank of a job whose ranks end up spinning in one collective, with a RAS server as NCCL has one.

collective.py STEPS LATE WAY: trains for STEPS steps, then spins in place ("spin") or as MPI waits
("yield"); the rank LATE launched one operation less than the others (-1: none did). Each rank's
server answers for all ranks, on the port that they share.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testbed.driver.fake_ras_server import FakeRasServer, json_report

PORT = 28028
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def all_pids(folder: Path) -> list[int]:
    """The ranks' numbers, as each of them wrote its own."""
    (folder / f"pid-{RANK}").write_text(str(os.getpid()))
    while True:
        found = [folder / f"pid-{rank}" for rank in range(WORLD)]
        if all(path.exists() and path.read_text() for path in found):
            return [int(path.read_text()) for path in found]
        time.sleep(0.05)


def main() -> None:
    steps, late = int(sys.argv[1]), int(sys.argv[2])
    pids = all_pids(Path.cwd())
    counts = [steps - int(rank == late) for rank in range(WORLD)]
    report = json_report(counts, pid_of=lambda rank: pids[rank]).replace("10.0.0.1", "127.0.0.1")
    server = FakeRasServer([report], port=PORT)
    print("serves at", server.address, flush=True)
    libc = ctypes.CDLL(None)
    for _ in range(steps):
        end_s = time.monotonic() + 0.05
        while time.monotonic() < end_s:
            sum(range(1000))
        time.sleep(0.15)
    while sys.argv[3] == "yield":
        os.sched_yield()
    # taken twice: the second time it spins in place, for ever, without a system call
    lock = ctypes.c_int()
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))
    libc.pthread_spin_lock(ctypes.byref(lock))


if __name__ == "__main__":
    main()
