"""Draw docs/images/trace.svg from a real run: four ranks hang, then `kcover-ebpf trace` explains them.

PYTHONPATH=. /usr/bin/python3 -m bench.demo.trace_picture
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.demo.svg import picture
from bench.faultbench.job import ROOT, SENSOR
from bench.faultbench.truth import first, parse

PATIENCE_S = 240.0
HANG_S = 12.0
TARGET = ROOT / "docs/images/trace.svg"


def launch(events: Path) -> list[str]:
    """Four ranks of torch, of which rank 2 takes two locks crosswise in step 6."""
    training = ["--step-s", "0.5", "--cpu-share", "0.05", "--inject", "deadlock-threads"]
    training += ["--inject-rank", "2", "--inject-step", "6", "--inject-s", "10"]
    training += ["--inject-path", "", "--inject-factor", "1"]
    command = ["/usr/bin/python3", "-m", "testbed.workloads.launch", "--framework", "torch"]
    return [*command, "--world", "4", "--events", str(events), "--", *training]


def main() -> int:
    """Make the picture; 1 if the job did not hang or trace named no rank."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        events.touch()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        job = subprocess.Popen(
            launch(events), env=environment, start_new_session=True, stderr=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + PATIENCE_S
            while first(parse(events.read_text()), "fault") is None and time.monotonic() < end:
                time.sleep(0.2)
            time.sleep(HANG_S)
            command = [str(SENSOR), "trace", "--pid", str(job.pid)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    print(done.stdout, done.stderr, sep="")
    if done.returncode != 1:
        return 1
    prompt = f"# kcover-ebpf trace --pid {job.pid}\n"
    TARGET.write_text(picture(prompt + done.stdout, "a job that hung before it was watched"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
