"""A separate process that requests core dumps of ranks' GPUs and reads them, because it opens files of the job.

`python -m kcover_ebpf.trace.gpu_kernels_program SECONDS`. Reads lines with a pid, and answers each that has a pipe
with one JSON line: {"pid", "kernels": [...]} or {"pid", "why"}. The others get no answer.
"""

from __future__ import annotations

import json
import sys
import time

from kcover_ebpf.archive.manifest import FORM
from kcover_ebpf.devices import cuda_dump_request
from kcover_ebpf.devices.cuda_dump import CudaDumpError
from kcover_ebpf.devices.cuda_dump_request import DumpPlace, Mark
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.trace import DUMP_POLL_S


def main() -> int:
    """Request all dumps before waiting for the first."""
    end_s = time.monotonic() + float(sys.argv[1])
    waiting: dict[DumpPlace, Mark] = {}
    for pid in (Pid(int(line)) for line in sys.stdin if line.strip()):
        try:
            place = cuda_dump_request.place_of(pid)
            if place is not None:
                waiting[place] = cuda_dump_request.request(place)
        except (CudaDumpError, OSError) as error:
            _say(pid, why=str(error))
    why = "no dump was written in time"
    while waiting:
        for place, before in list(waiting.items()):
            try:
                if cuda_dump_request.mark(place) in (None, before):
                    continue
                kernels = cuda_dump_request.fetch(place)
            except (CudaDumpError, OSError) as error:
                # it may be half written
                why = str(error)
                continue
            del waiting[place]
            _say(place.pid, kernels=list(map(FORM.encode, kernels)))
        if time.monotonic() >= end_s:
            break
        time.sleep(DUMP_POLL_S)
    for place in waiting:
        _say(place.pid, why=why)
    return 0


def _say(pid: Pid, **answer: object) -> None:
    sys.stdout.write(json.dumps({"pid": pid, **answer}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
