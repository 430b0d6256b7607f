"""A rank that trains on a stub of a GPU: python gpu.py LIBRARY MEMORY STEPS FAULT.

After STEPS healthy steps: lock (rank 1 never launches), device (all launch what never ends), asleep (the same; all wait
asleep from the start), beside (the same in another thread, like autograd's), none.
"""

import ctypes
import mmap
import os
import sys
import threading
import time

library, memory, steps, fault = ctypes.CDLL(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WORK_S, DEVICE_NS = 0.08, ctypes.c_int64(120_000_000)

sleeps = fault in ("asleep", "beside")
synchronize = library.cuStreamSynchronizeBlocking if sleeps else library.cuStreamSynchronize


def await_device(*arguments: object) -> None:
    if fault != "beside":
        synchronize(*arguments)
        return
    thread = threading.Thread(target=synchronize, args=arguments)
    thread.start()
    thread.join()


with open(memory, "r+b") as file:
    words = (ctypes.c_uint32 * world).from_buffer(mmap.mmap(file.fileno(), 4096))
for step in range(1, steps + 1):
    end = time.monotonic() + WORK_S
    while time.monotonic() < end:
        sum(range(500))
    if step == steps and fault == "lock" and rank == 1:
        print("fault", time.time(), file=sys.stderr, flush=True)
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    words[rank] = step
    await_device(words, world, step, DEVICE_NS)
if fault in ("device", "asleep", "beside"):
    print("fault", time.time(), file=sys.stderr, flush=True)
    await_device(words, world, 0xFFFFFFFF, DEVICE_NS)
