"""Which kernels run on the GPUs of some processes, from core dumps that these consent to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from kcover_ebpf.archive.manifest import FORM
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement, Helper
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.model.traced import GpuKernel
from kcover_ebpf.tunables.host import HELPER_CPU_S

_READER = Confinement(
    data_bytes=96 << 20,
    cpu_s=HELPER_CPU_S,
    # files of ranks of any user, and a byte into their pipe
    kept=frozenset({Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH, Capability.DAC_OVERRIDE}),
)
_OUTPUT_BYTES = 1 << 20
_MOST_PROCESSES = 256
_MOST_WHY = 200


class KernelReading:
    """A reading that continues while the caller does something else."""

    def __init__(self, pids: Collection[int], limit_s: float) -> None:
        """Ask those of these processes that have a pipe; wait this long for their dumps."""
        self._helper: Helper | None = None
        self._why = ""
        command = [sys.executable, "-m", "kcover_ebpf.trace.gpu_kernels_program", f"{limit_s:g}"]
        try:
            self._helper = helper.start(command, _READER, stdin=subprocess.PIPE)
            chosen = sorted(pids)[:_MOST_PROCESSES]
            os.write(self._helper.stdin, "".join(f"{pid}\n" for pid in chosen).encode())
            self._helper.close_stdin()
        except OSError as error:
            self._why = f"kernels of GPUs (no reader: {error.strerror})"

    def finish(
        self, ranks: Mapping[int, int | None], end_s: float
    ) -> tuple[tuple[GpuKernel, ...], list[str]]:
        """(the kernels, what could not be read) by `end_s` (CLOCK_MONOTONIC); `ranks`: pid -> rank number."""
        if self._helper is None:
            return (), [self._why]
        out, why = self._helper.output(max(end_s, time.monotonic()), _OUTPUT_BYTES)
        self._helper.end()
        kernels: list[GpuKernel] = []
        unread = []
        answers = list(_answers(out))
        for pid, found, refusal in answers:
            rank = ranks.get(pid)
            kernels += (replace(kernel, pid=pid, rank=rank) for kernel in found)
            if refusal:
                who = f"pid {pid}" if rank is None else f"rank {rank}"
                unread.append(f"kernels of the GPU of {who} ({refusal})")
        if not answers:
            unread.append(f"kernels of GPUs ({why or 'no rank has a pipe CUDA_COREDUMP_PIPE'})")
        return tuple(kernels), unread


def _answers(out: bytes) -> Iterator[tuple[int, list[GpuKernel], str]]:
    """(pid, kernels, why there are none) of each line; invalid lines are skipped."""
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            answer = json.loads(line)
            kernels = [FORM.decode(GpuKernel, kernel) for kernel in answer.get("kernels", ())]
            yield int(answer["pid"]), kernels, str(answer.get("why", ""))[:_MOST_WHY]
        except (ValueError, KeyError, TypeError, AttributeError, ObjectError, RecursionError):
            continue
