"""A process with a communicator of one rank: `communicator torch|library`; says "ready", then waits for a line."""

from __future__ import annotations

import ctypes
import importlib
import sys

from tools.gpucheck.cuda import Driver, Scheduling
from tools.gpucheck.nccl_library import find
from tools.gpucheck.plan import NotPossible

_OPERATIONS = 23
_FLOATS = 1 << 20
_FLOAT32, _SUM = 7, 0


def with_torch() -> None:
    """Create it as a training does, so that the Flight Recorder runs."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    distributed.init_process_group("nccl", rank=0, world_size=1)
    tensor = torch.ones(_FLOATS, device="cuda")
    for _ in range(_OPERATIONS):
        distributed.all_reduce(tensor)
    torch.cuda.synchronize()


def with_library() -> None:
    """Create it with NCCL directly (nccl.h)."""
    driver = Driver()
    driver.initialize()
    driver.use_primary_context(Scheduling.AUTO)
    library = ctypes.CDLL(find())
    communicator, devices = ctypes.c_void_p(), (ctypes.c_int * 1)(0)
    if code := library.ncclCommInitAll(ctypes.byref(communicator), 1, devices):
        raise NotPossible(f"ncclCommInitAll failed with {code}")
    memory = ctypes.c_void_p(driver.allocate(4 * _FLOATS))
    count = ctypes.c_size_t(_FLOATS)
    for _ in range(_OPERATIONS):
        code = library.ncclAllReduce(memory, memory, count, _FLOAT32, _SUM, communicator, None)
        if code:
            raise NotPossible(f"ncclAllReduce failed with {code}")
    driver.call("cuCtxSynchronize")


if __name__ == "__main__":
    try:
        with_torch() if sys.argv[1] == "torch" else with_library()
    except (NotPossible, RuntimeError, ImportError, OSError, AttributeError) as problem:
        print(f"{type(problem).__name__}: {problem}".splitlines()[0])
        sys.exit(1)
    print("ready", flush=True)
    sys.stdin.readline()
