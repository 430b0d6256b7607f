"""A launcher of independent trials: no trial waits for another, and each has its own result.

`sweep.py fails`: the second trial diverges and exits with 1; the launcher tries other parameters.
`sweep.py pauses`: a trial ends well, later the others wait for the same data service at one moment.
"""

import subprocess
import sys
import time

import numpy as np
import service

from bench.lifebench.life import event_log, phase_of
from testbed.workloads.training import Options, Pace

TRIALS = 4


def trial(number: int, kind: str) -> None:
    """One model, trained by itself."""
    log = event_log(number)
    log.write("start")
    pace = Pace(Options(step_s=0.4, cpu_share=0.05))
    weights = np.ones(1000)

    def train(seconds: float) -> None:
        nonlocal weights
        for step in range(round(seconds / 0.4)):
            pace.compute()
            weights = weights * 0.999
            log.write("step", step=step)

    train(18)
    if kind == "fails" and number == 1:
        with phase_of(log):
            raise SystemExit("loss is NaN")
    if number == 0:
        return
    train(10)
    if kind == "pauses":
        with phase_of(log):
            service.get("/late/12")
    train(8)


def start(number: int, kind: str) -> subprocess.Popen[bytes]:
    """A trial in its own process."""
    return subprocess.Popen([sys.executable, "-u", __file__, kind, str(number)])


def launch(kind: str) -> None:
    """All trials, and another one for each that fails."""
    trials = [start(number, kind) for number in range(TRIALS)]
    following = TRIALS
    while trials:
        for process in [process for process in trials if process.poll() is not None]:
            trials.remove(process)
            if process.returncode:
                trials.append(start(following, kind))
                following += 1
        time.sleep(0.5)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        trial(int(sys.argv[2]), sys.argv[1])
    else:
        launch(sys.argv[1])
