"""What a probe on NCCL costs a call: `python -m bench.ncclbench FILE` appends a line of JSON for each pair of blocks.

Blocks of calls with and without probes take turns in one process, which calls the stub of testbed/faults/nccl.c:
what the call itself does is next to nothing. Of its own CPU time, so that other load counts little.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from kcover_ebpf.collectives.nccl.probes import NcclProbes
from kcover_ebpf.ids import Pid
from tools.gpucheck.plan import NotPossible
from tools.gpucheck.probes import attach, detach

FAULTS = Path(__file__).resolve().parents[1] / "testbed/faults"
PAIRS = 15
OPERATIONS = ("AllReduce", "Send")


def build(folder: Path) -> Path:
    """The calling program, next to its library."""
    library, program = folder / "libnccl.so.2", folder / "nccl_time"
    shared = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(FAULTS / "nccl.c")]
    subprocess.run(shared, check=True)
    calling = ["gcc", "-O2", "-o", str(program), str(FAULTS / "nccl_time.c"), str(library)]
    subprocess.run([*calling, f"-Wl,-rpath,{folder}"], check=True)
    return program


def block(say: IO[str], hear: IO[str]) -> list[float]:
    """Nanoseconds a call, of each operation."""
    say.write("go\n")
    say.flush()
    return [float(part) for part in hear.readline().split()]


def main() -> None:
    """Measure, append, and print the medians."""
    out, rows = Path(sys.argv[1]), []
    probes = NcclProbes()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(build(Path(folder)))]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as caller:
            assert caller.stdin is not None
            assert caller.stdout is not None
            caller.stdout.readline()
            pid = Pid(caller.pid)
            for _ in range(PAIRS):
                without = block(caller.stdin, caller.stdout)
                attach(probes, pid)
                with_probes = block(caller.stdin, caller.stdout)
                detach(probes, pid)
                load = round(os.getloadavg()[0], 1)
                rows.append(
                    {"off_ns": without, "on_ns": with_probes, "load": load}
                    | {"kernel": platform.release(), "machine": platform.machine()}
                )
            caller.stdin.close()
    probes.close()
    with out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    for number, name in enumerate(OPERATIONS):
        off, on = ([row[key][number] for row in rows] for key in ("off_ns", "on_ns"))  # type: ignore[index]
        more = statistics.median(b - a for a, b in zip(off, on, strict=True))
        medians = statistics.median(off), statistics.median(on)
        print(
            f"{name}: {medians[0]:.1f} ns without, {medians[1]:.0f} ns with probes, {more:.0f} more"
        )


if __name__ == "__main__":
    try:
        main()
    except NotPossible as problem:
        sys.exit(str(problem))
