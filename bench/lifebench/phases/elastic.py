"""torchrun that forms its group again: `elastic.py grows` or `fails` on two hosts, `elastic.py restarts` on one.

grows: the second host joins after 16 s of training; the workers of the first are ended and all start with a
world of four. restarts: a worker loses its data service once and exits with 1; torchrun starts all
of them again, from the last checkpoint. fails: the same with a worker of the second of two hosts.
"""

import os
import sys

from bench.lifebench.life import await_events, event_log, folder

CHECKPOINT = "elastic-step"


def launch(kind: str) -> None:
    """Become torchrun."""
    host, address = int(os.environ["LIFE_HOST"]), os.environ["MASTER_ADDR"]
    endpoint = f"{address}:{os.environ['MASTER_PORT']}"
    # PyTorch 1.13 on Python 3.11 knows neither redirection 0, its own default, nor 3.
    options = ["--redirects=1", "--tee=1", f"--log_dir=torchrun-{host}", "--no_python"]
    if kind in ("grows", "fails"):
        if host and kind == "grows":
            await_events("step", 80)
            event_log(None).write("phase_begin")
        rendezvous = f"--rdzv_conf=is_host={int(host == 0)},last_call_timeout=2"
        nodes = "1:2" if kind == "grows" else "2:2"
        options += [
            f"--nnodes={nodes}",
            "--max_restarts=2",
            "--nproc_per_node=2",
            "--rdzv_backend=c10d",
            rendezvous,
        ]
        options += [f"--rdzv_endpoint={endpoint}", "--rdzv_id=life", "--monitor_interval=1"]
    else:
        port = os.environ["MASTER_PORT"]
        options += ["--nnodes=1", "--nproc_per_node=3", "--max_restarts=2", "--monitor_interval=1"]
        options += [f"--master_addr={address}", f"--master_port={port}"]
    os.environ["LIFE_MASTER"] = address
    worker = [sys.executable, "-u", __file__, kind]
    torchrun = ["-m", "torch.distributed.run", *options, *worker]
    os.execv(sys.executable, [sys.executable, *torchrun])


def work(kind: str) -> None:
    """Train until there was a second incarnation, and for 15 s in it."""
    from group_training import GroupTraining

    first = not (folder() / CHECKPOINT).exists()
    # Torchrun gives a host name, which no resolver here knows.
    init = f"tcp://{os.environ['LIFE_MASTER']}:{os.environ['MASTER_PORT']}"
    job = GroupTraining(init_method=init)
    job.train(3)
    if job.rank == 0:
        (folder() / CHECKPOINT).touch()
    if kind != "grows" and first:
        job.train(15)
        if job.rank == (1 if kind == "restarts" else 3):
            job.log.write("phase_begin")
            sys.exit("data service: connection reset")
    while kind == "grows" and job.world < 4:
        job.step()
    if job.rank == 0:
        job.log.write("phase_end")
    job.train(15)


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(sys.argv[1])
    else:
        launch(sys.argv[1])
