"""Logs of ranks that crash, as PyTorch and the libraries around it write them."""

from __future__ import annotations

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import Chunk
from tests.unit.support.report_builders import NOW_S

RULES = tuple(rule for rule in rules.shipped() if rule.source is Source.CONTAINER)


def raised(error: str, *, line: int = 71, mark: str = "Traceback") -> str:
    frame = f'  File "/w/train.py", line {line}, in main\n    go()'
    return f"{mark} (most recent call last):\n{frame}\n{error}\n"


_HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_NCCL = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/"
_CUDA = f"{_NCCL}NCCLUtils.cpp:317, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5"
_SYSTEM = f"{_NCCL}NCCLUtils.cpp:317, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21"

STALE = raised("OSError: Caught OSError in DataLoader worker process 0.") + raised(
    "OSError: [Errno 116] Stale file handle: '/data/7'", line=9, mark="Original Traceback"
)
WRAPPED = (
    raised("OSError: [Errno 5] Input/output error", line=9)
    + _CAUSE
    + raised("RuntimeError: cannot load shard")
)
HUB = (
    raised("requests.exceptions.ConnectionError: (MaxRetryError('x'))", line=7)
    + _CAUSE
    + raised("huggingface_hub.utils._errors.LocalEntryNotFoundError: An error happened", line=8)
    + _CAUSE
    + raised("OSError: We couldn't connect to 'https://huggingface.co' to load this file")
)
ECC = (
    raised(_CUDA) + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Cuda failure 'uncorrectable ECC error encountered'\n"
)
SOCKET = (
    raised(_SYSTEM)
    + "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\nsocketStartConnect: Connect to 10.0.0.2<41000> failed : Connection refused\n"
)
SHM = (
    raised(_SYSTEM)
    + "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\nError while creating shared memory segment /dev/shm/nccl-x7 (size 9637888)\n"
)
CACHE = (
    raised("KeyError: 'vocabulary'", line=7)
    + _HANDLING
    + raised("ConnectionRefusedError: [Errno 111] Connection refused")
)
UCX = (
    "[host:7:0] ib_mlx5_log.c:177 UCX  ERROR Transport retry count exceeded on mlx5_0:1\n"
    + raised("RuntimeError: allreduce failed")
)
BUG = raised("ValueError: expected 4 channels")
_TIMEOUT = "Watchdog caught collective operation timeout: "
AFTERWARDS = f"""\
[rank1]:[W1122 10:00:00.123 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe
[rank1]:[E1122 10:00:00.123 ProcessGroupNCCL.cpp:629] [Rank 1] {_TIMEOUT}WorkNCCL(SeqNum=8, OpType=X)
[rank1]:[E1122 10:00:00.124 ProcessGroupNCCL.cpp:684] [Rank 1] Some NCCL operations have failed or timed out.
{raised(f"{_NCCL}ProcessGroupNCCL.cpp:2356, remote process exited or there was a network error, NCCL", line=80)}\
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer host<41000>
{raised("RuntimeError: NCCL communicator was aborted on rank 2.", line=81)}\
{raised("ConnectionResetError: [Errno 104] Connection reset by peer", line=82)}\
{raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", line=83)}\
============================================================
Root Cause (first observed failure):
[0]:
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 77)
  error_file: <N/A>
"""
"""What the other ranks of a pod and torchrun write once one of them raised."""


def logged(
    text: str, *, start: int, pod_uid: str = "uid-1", at_s: float = NOW_S - 2.1
) -> ContainerLog:
    """What the agent reports of a start that began just before and ended so; `at_s` by the node's clock."""
    reader = ContainerLogReader(pod_uid, "main", RULES)
    lines = ["starting", *text.splitlines()]
    block = "".join(f"{rfc3339.to_text(at_s)} stderr F {line}\n" for line in lines)
    reader.feed(Chunk(start, block.encode(), is_first=True), NOW_S)
    shown = reader.summary(NOW_S)
    assert shown is not None
    return shown
