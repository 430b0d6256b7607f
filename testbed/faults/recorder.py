"""A rank whose PyTorch has a flight recorder: it serves the pipe, and writes dumps as PyTorch does.

recorder.py STEPS ODD WAY: trains for STEPS steps, then waits in a collective for ever. The rank ODD
never calls it ("behind"), calls another operation instead ("skipped"), has all call the same ("joined"), or
all are deaf ("deaf"). Each question is written down as a line of asked-RANK.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testbed.driver.recorder_dumps import dump, pickled, steps

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PIPE = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{RANK}.pipe"
FILE = f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{RANK}"
CHECK_S = 1.0
"""How often PyTorch's heartbeat monitor reads its pipe."""
LATE_S = 5.0
"""The last rank finds the names of its frames later than the others: what they hold has long been read."""


def recorded(count: int, odd: int, way: str) -> bytes:
    """What this rank's recorder holds in the end."""
    members = str(list(range(WORLD)))
    if odd == RANK and way == "behind":
        return pickled(dump(steps(count), members))
    if odd == RANK and way == "skipped":
        return pickled(dump(steps(count, ends="all_gather", line=57), members))
    return pickled(dump(steps(count, ends="all_reduce"), members))


def serve(data: bytes) -> None:
    Path(PIPE).unlink(missing_ok=True)
    os.mkfifo(PIPE)
    pipe = os.open(PIPE, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(CHECK_S)
        if question := os.read(pipe, 128):
            with Path(f"asked-{RANK}").open("a") as log:
                log.write(f"{len(question)}\n")
            if RANK == WORLD - 1:
                time.sleep(LATE_S)
            Path(FILE).write_bytes(data)


def main() -> None:
    count, odd, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if way != "deaf":
        threading.Thread(target=serve, args=(recorded(count, odd, way),), daemon=True).start()
    libc = ctypes.CDLL(None)
    for _ in range(count):
        end_s = time.monotonic() + 0.05
        while time.monotonic() < end_s:
            sum(range(1000))
        time.sleep(0.15)
    if way == "healthy":
        return
    # taken twice: the second time it spins in place, for ever, without a system call
    lock = ctypes.c_int()
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))
    libc.pthread_spin_lock(ctypes.byref(lock))


if __name__ == "__main__":
    main()
