"""A launcher of two independent trainings of two ranks each, in one pod: neither waits for the other.

`sub_jobs.py pauses`: both ranks of the second wait for a data service, while the first trains.
`sub_jobs.py ends`: the second is done; later the first waits for the same service.
`sub_jobs.py fails`: the second diverges, and its ranks exit with 1; the launcher tries other parameters.
"""

import os
import subprocess
import sys
import time

import service
from group_training import GroupTraining

from bench.lifebench.life import phase_of

WORLD = 2


def work(kind: str, number: int) -> None:
    """One rank of the training with this number."""
    job = GroupTraining()
    job.train(18)
    if kind == "fails" and number == 1:
        with phase_of(job.log):
            raise SystemExit("loss is NaN")
    if kind == "ends" and number == 1:
        return
    if (kind == "pauses" and number == 1) or kind == "ends":
        job.train(4)
        with phase_of(job.log):
            service.get("/late/12")
    job.train(16)


def start(number: int, kind: str) -> list[subprocess.Popen[bytes]]:
    """All ranks of a training, which meet at a port of their own."""
    port = int(os.environ["MASTER_PORT"]) + number
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-u", __file__, kind, str(number)]
    return [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)})
        for rank in range(WORLD)
    ]


def launch(kind: str) -> None:
    """Both trainings, and another one for one that fails."""
    trainings = {number: start(number, kind) for number in range(2)}
    while trainings:
        for number, ranks in list(trainings.items()):
            codes = [process.poll() for process in ranks]
            if None in codes:
                continue
            del trainings[number]
            if any(codes):
                trainings[number + 2] = start(number + 2, kind)
        time.sleep(0.5)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        work(sys.argv[1], int(sys.argv[2]))
    else:
        launch(sys.argv[1])
