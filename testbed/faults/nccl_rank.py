"""A rank of a job that launches operations of an NCCL library, and whose ranks all end up spinning.

nccl_rank.py LIBRARY STEPS FAULT LATE: makes a communicator of all ranks with an id that they share, launches an
operation a step, then the last one in which the rank LATE takes no part (FAULT "absent"), calls another one ("other")
or posts no receive ("unreceived"); with "none" all take part. Nothing answers for NCCL: there is no RAS.
"""

import ctypes
import os
import sys
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FLOAT, SUM, COUNT = 7, 0, ctypes.c_size_t(1)


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Communicator:
    def __init__(self, path: str, name: bytes) -> None:
        self.nccl = ctypes.CDLL(path)
        time.sleep(6)  # a framework loads for seconds before it makes a communicator
        self.comm = ctypes.c_void_p()
        where = ctypes.byref(self.comm)
        assert self.nccl.ncclCommInitRank(where, WORLD, UniqueId(name), RANK) == 0

    def all_reduce(self) -> None:
        self.nccl.ncclAllReduce(None, None, COUNT, FLOAT, SUM, self.comm, None)

    def all_gather(self) -> None:
        self.nccl.ncclAllGather(None, None, COUNT, FLOAT, self.comm, None)

    def pass_on(self, *, receives: bool) -> None:
        """To the next rank of a line, from the one before."""
        if RANK + 1 < WORLD:
            self.nccl.ncclSend(None, COUNT, FLOAT, RANK + 1, self.comm, None)
        if RANK > 0 and receives:
            self.nccl.ncclRecv(None, COUNT, FLOAT, RANK - 1, self.comm, None)


def step() -> None:
    end_s = time.monotonic() + 0.05
    while time.monotonic() < end_s:
        sum(range(1000))
    time.sleep(0.1)


def main() -> None:
    steps, fault, late = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    comm = Communicator(sys.argv[1], b"of this job")
    is_late = late == RANK
    for _ in range(steps):
        step()
        if fault == "unreceived":
            comm.pass_on(receives=True)
        else:
            comm.all_reduce()
    if fault == "unreceived":
        comm.pass_on(receives=not is_late)
    elif fault == "other" and is_late:
        comm.all_gather()
    elif fault == "none" or not is_late:
        comm.all_reduce()
    # taken twice: the second time it spins in place, for ever, without a system call
    libc, lock = ctypes.CDLL(None), ctypes.c_int()
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))
    libc.pthread_spin_lock(ctypes.byref(lock))


if __name__ == "__main__":
    main()
