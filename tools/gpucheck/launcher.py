"""A process that launches operations of NCCL as it is asked to: `launcher torch|library`.

Says "loaded", then answers each line, "collective N", "captured N" (torch) or "message N" (the library: torch sends
nothing from a rank to itself), with "done" and the nanoseconds of its own CPU time that one of them took.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import time
from typing import Any

from tools.gpucheck.cuda import Driver, Scheduling
from tools.gpucheck.nccl_library import find
from tools.gpucheck.plan import NotPossible

DONE = "done "
_REPLAYS = 3
"""Replays of each captured graph; they call no function of NCCL."""
_FLOATS = 1 << 12
_FLOAT32, _SUM = 7, 0


class _WithTorch:
    """Launches operations as a training does."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._group: Any = importlib.import_module("torch.distributed")
        self._tensor: Any = None

    def collective(self, count: int) -> None:
        if self._tensor is None:
            self._group.init_process_group("nccl", rank=0, world_size=1)
            self._tensor = self._torch.ones(_FLOATS, device="cuda")
        for _ in range(count):
            self._group.all_reduce(self._tensor)

    def captured(self, count: int) -> None:
        graph = self._torch.cuda.CUDAGraph()
        # meanwhile torch's watchdog calls CUDA from its own thread
        with self._torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.collective(count)
        for _ in range(_REPLAYS):
            graph.replay()

    def finish(self) -> None:
        self._torch.cuda.synchronize()


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class _WithLibrary:
    """Launches operations with NCCL directly (nccl.h)."""

    def __init__(self) -> None:
        self._nccl = ctypes.CDLL(find())
        self._driver = Driver()
        self._comm, self._memory = ctypes.c_void_p(), ctypes.c_void_p()

    def _begin(self) -> None:
        self._driver.initialize()
        self._driver.use_primary_context(Scheduling.AUTO)
        self._memory = ctypes.c_void_p(self._driver.allocate(4 * _FLOATS))
        unique = _UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(unique))
        self._call("ncclCommInitRank", ctypes.byref(self._comm), 1, unique, 0)

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._nccl, name)(*arguments):
            raise NotPossible(f"{name} failed with {code}")

    def collective(self, count: int) -> None:
        if not self._comm.value:
            self._begin()
        size = ctypes.c_size_t(_FLOATS)
        for _ in range(count):
            self._call(
                "ncclAllReduce",
                self._memory,
                self._memory,
                size,
                _FLOAT32,
                _SUM,
                self._comm,
                None,
            )

    def message(self, count: int) -> None:
        """Send and receive messages within this rank: as a group, since otherwise the first waits for the second."""
        size = ctypes.c_size_t(_FLOATS)
        for _ in range(count):
            self._call("ncclGroupStart")
            for name in ("ncclSend", "ncclRecv"):
                self._call(name, self._memory, size, _FLOAT32, 0, self._comm, None)
            self._call("ncclGroupEnd")

    def finish(self) -> None:
        self._driver.call("cuCtxSynchronize")


def _cost_ns(launcher: _WithTorch | _WithLibrary, kind: str, count: int) -> float:
    began_ns = time.thread_time_ns()
    getattr(launcher, kind)(count)
    took_ns = time.thread_time_ns() - began_ns
    launcher.finish()
    return took_ns / count


def main() -> None:
    launcher = _WithTorch() if sys.argv[1] == "torch" else _WithLibrary()
    print("loaded", flush=True)
    for line in sys.stdin:
        kind, count = line.split()
        print(f"{DONE}{_cost_ns(launcher, kind, int(count)):.0f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (NotPossible, RuntimeError, ImportError, OSError, AttributeError) as problem:
        print(f"{type(problem).__name__}: {problem}".splitlines()[0], flush=True)
        # a communicator in a bad state can hang the interpreter's shutdown
        os._exit(1)
