"""Calls NCCL's functions as it is asked to, and answers each line with "done".

Lines: "init NAME RANK SIZE [KIND]", "split COLOUR KEY", "destroy", "FUNCTION TIMES [PEER]".

nccl_calls.py LIBRARY: of the real library the functions fail, for there is no GPU and the communicator is an empty
page; a probe at their beginning has counted them by then.
"""

import ctypes
import sys


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


ONE = ctypes.c_size_t(1)
COMM_BYTES = 16 << 20
# the arguments before communicator and stream; P: of the peer (nccl.h)
SHAPES = {
    "ncclAllReduce": (None, None, ONE, 7, 0),
    "ncclReduceScatter": (None, None, ONE, 7, 0),
    "ncclAllGather": (None, None, ONE, 7),
    "ncclBroadcast": (None, None, ONE, 7, 0),
    "ncclBcast": (None, ONE, 7, 0),
    "ncclReduce": (None, None, ONE, 7, 0, 0),
    "ncclAlltoAll": (None, None, ONE, 7),
    "ncclGather": (None, None, ONE, 7, 0),
    "ncclScatter": (None, None, ONE, 7, 0),
    "ncclSend": (None, ONE, 7, "P"),
    "ncclRecv": (None, ONE, 7, "P"),
}


class Caller:
    def __init__(self, path: str) -> None:
        self.nccl = ctypes.CDLL(path)
        self.comms: list[ctypes.c_void_p] = []
        self.kept: list[ctypes.Array[ctypes.c_char]] = []

    def init(self, name: str, rank: str, size: str, kind: str = "ncclCommInitRank") -> None:
        comm, unique, where = ctypes.c_void_p(), UniqueId(name.encode()), int(rank)
        function = getattr(self.nccl, kind)
        if kind == "ncclCommInitRankScalable":
            function(ctypes.byref(comm), int(size), where, 1, ctypes.byref(unique), None)
        elif kind == "ncclCommInitRankConfig":
            function(ctypes.byref(comm), int(size), unique, where, None)
        else:
            function(ctypes.byref(comm), int(size), unique, where)
        self._keep(comm)

    def split(self, colour: str, key: str) -> None:
        comm = ctypes.c_void_p()
        self.nccl.ncclCommSplit(self.comms[-1], int(colour), int(key), ctypes.byref(comm), None)
        self._keep(comm)

    def _keep(self, comm: ctypes.c_void_p) -> None:
        if not comm.value:  # it failed
            self.kept.append(ctypes.create_string_buffer(COMM_BYTES))
            comm.value = ctypes.addressof(self.kept[-1])
        self.comms.append(comm)

    def destroy(self) -> None:
        self.nccl.ncclCommDestroy(self.comms.pop())

    def call(self, function: str, times: str, peer: str = "0") -> None:
        shape = (int(peer) if shape == "P" else shape for shape in SHAPES[function])
        arguments = (*shape, self.comms[-1], None)
        for _ in range(int(times)):
            getattr(self.nccl, function)(*arguments)


def main() -> None:
    caller = Caller(sys.argv[1])
    print("loaded", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word in ("init", "split", "destroy"):
            getattr(caller, word)(*rest)
        else:
            caller.call(word, *rest)
        print("done", flush=True)


if __name__ == "__main__":
    main()
