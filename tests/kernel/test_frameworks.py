"""Frameworks that recover by themselves, the real packages: what a sensor that may end the job does about it.

They are not installed by tools/setup, which would take gigabytes. `KCOVER_FRAMEWORKS=VENV` names a virtual environment
that has them: `pip install torch lightning "ray[train]" nvidia-resiliency-ext torchft dlrover grpcio`. What it lacks is
skipped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed import skips
from tests.kernel.command import Run

pytestmark = [pytest.mark.needs("root", "bpf", "cgroup2", "frameworks"), pytest.mark.timeout(1800)]
PROGRAM = Path(__file__).with_name("framework_program.py")
VENV = os.environ.get("KCOVER_FRAMEWORKS", "")
PATIENCE_S = 600.0
_SHELL = (
    "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29776; "
    "RANK=0 LOCAL_RANK=0 {0} & RANK=1 LOCAL_RANK=1 {0} & wait"
)


@dataclass(frozen=True)
class Framework:
    """One framework, and a fault that it mends."""

    program: str
    launcher: tuple[str, ...] = ()
    raises: bool = False
    """A rank raises; else it gets SIGKILL."""
    package: str = "torch"
    """The module that it needs."""


# ranks that torch 2.15 starts again may meet the addresses of those before them, and fail once more
_OPTIONS = ("--nproc-per-node=2", "--max-restarts=3", "--rdzv-backend=c10d")
TORCHRUN = ("torchrun", *_OPTIONS, "--rdzv-endpoint=127.0.0.1:29610")
FT_LAUNCHER = ("ft_launcher", *_OPTIONS, "--rdzv-endpoint=127.0.0.1:29600")
DLROVER_RUN = ("dlrover-run", "--standalone", "--nproc_per_node=2", "--max_restarts=1")
# two groups; whoever runs them, here a loop and elsewhere Kubernetes, starts one again that ended. They say more than a
# pipe holds, which is read at the end
TORCHFT = """
exec >/dev/null 2>&1
export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510
{venv}/bin/torchft_lighthouse --bind 127.0.0.1:29510 --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 1000 &
for group in 0 1; do
  while true; do
    REPLICA_GROUP_ID=$group {venv}/bin/torchrun --nproc-per-node=1 --master-port=2960$group {words}
  done &
done
wait
"""
FRAMEWORKS = {
    "torchelastic": Framework("launched", TORCHRUN),
    "Lightning under torchrun": Framework("lightning", TORCHRUN, package="lightning"),
    "NVRx in job": Framework("launched", FT_LAUNCHER, package="nvidia_resiliency_ext"),
    "NVRx in process": Framework("in_process", raises=True, package="nvidia_resiliency_ext"),
    "Ray Train": Framework("ray", package="ray"),
    "torchft": Framework("torchft", package="torchft"),
    "DLRover": Framework("launched", DLROVER_RUN, package="dlrover"),
}


def _command(framework: Framework, folder: Path) -> list[str]:
    words = [str(PROGRAM), framework.program, str(folder)]
    python = f"{VENV}/bin/python"
    if framework.launcher:
        return [f"{VENV}/bin/{framework.launcher[0]}", *framework.launcher[1:], *words]
    if framework.program == "in_process":
        return ["sh", "-c", _SHELL.format(" ".join([python, *words]))]
    if framework.program == "torchft":
        return ["sh", "-c", TORCHFT.format(venv=VENV, words=" ".join(words))]
    return [python, *words]


def _last(folder: Path, rank: int) -> tuple[int, int, int]:
    """Run, step and process of a rank's last line; (-1, 0, 0) before the first."""
    path = folder / f"steps-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    found = re.fullmatch(r"run (\d+) rank \d+ step (\d+) pid (\d+)", lines[-1]) if lines else None
    return (int(found[1]), int(found[2]), int(found[3])) if found is not None else (-1, 0, 0)


def _until(reached: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.2)
    return reached()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_a_framework_mends_is_left_to_it(name: str, tmp_path: Path) -> None:
    framework = FRAMEWORKS[name]
    if not list(Path(VENV).glob(f"lib/python3*/site-packages/{framework.package}")):
        skips.skip("frameworks", f"{framework.package} is not in {VENV}")
    run = Run("--act=shutdown", "-o", "json", "--", *_command(framework, tmp_path), folder=tmp_path)
    try:
        if not _until(lambda: _last(tmp_path, 1)[1] >= 40):
            os.kill(run.pid, signal.SIGTERM)
            run.finish()
            raise AssertionError(run.err[-4000:])
        fault_s, (before, _, pid) = time.time(), _last(tmp_path, 1)
        if framework.raises:
            (tmp_path / "raise").touch()
        else:
            os.kill(pid, signal.SIGKILL)
        again = _until(
            lambda: (
                run.process.poll() is not None
                or (_last(tmp_path, 1)[0] > before and _last(tmp_path, 1)[1] >= 20)
            )
        )
        mended_s = time.time() - fault_s
        assert again
        assert run.process.poll() is None, run.err[-4000:]
    finally:
        if run.process.poll() is None:
            os.kill(run.pid, signal.SIGTERM)
        code = run.finish()
    found: list[dict[str, Any]] = [json.loads(line) for line in run.out.splitlines()]
    faults = [line for line in found if line["event"] == "verdict" and line["time"] > fault_s]
    said = sorted({f"{line['verdict']} {line['cause']}" for line in faults})
    print(json.dumps({"framework": name, "s": round(mended_s, 1), "code": code, "said": said}))
