"""Start the ranks of a training job on this host, as torchrun or a shell loop would.

It waits for all ranks and exits with the code of the first one that failed (128 + signal for one
that was killed), 0 if none did. With --kill-others it ends the job as soon as one rank fails, as
torchrun does. SIGUSR1 restarts all ranks, as an elastic agent does; SIGRTMIN + N kills rank N.
With --netns every rank gets its own network namespace on a private bridge, and with --monitor there is one
more for a service, and a process with RANK that only looks on. MPI jobs are handed to mpirun.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from testbed.ports import free_port
from testbed.workloads import gpu_styles, network
from testbed.workloads.training import EventLog

ROOT = Path(__file__).resolve().parents[2]
MODULES = {"torch": "torch_ddp", "mpi": "mpi_allreduce", "jax": "jax_allreduce"}
MODULES |= dict.fromkeys(gpu_styles.STYLES, "gpu_training")
OWN = "testbed.workloads.own_launchers"
TORCH = "testbed.workloads.torch_ddp"
COMMANDS = {
    "spawn": "{python} -m {own} spawn {world}",
    "spawn-node": "{python} -m {own} spawn {half}",
    "spawn-slurm": "{python} -m {own} spawn {world}",
    "fork": "{python} -m {own} fork {world}",
    "ray": "{python} -m {own} ray {world}",
    "numbered": "{python} -m {own} numbered {world} {rest} --rank {rank}",
    "bare": "{python} -m {own} bare {world}",
    "lightning": "{python} -m testbed.workloads.lightning_ddp {world}",
    # what `deepspeed` runs on each host, which itself wants GPUs
    "deepspeed": "{python} -u -m deepspeed.launcher.launch --world_info={hosts} --master_addr=127.0.0.1 "
    "--master_port={port} --no_local_rank --module {torch}",
}
"""Jobs that start their ranks by themselves, or by another launcher than this; without `{rest}` the workload's
options come last.
"""
POLL_S = 0.05


def arguments() -> argparse.Namespace:
    """Parse the command line; everything after `--` goes to each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=sorted({*MODULES, *COMMANDS}), default="torch")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter of the ranks")
    parser.add_argument("--world", type=int, default=4, help="number of ranks")
    parser.add_argument("--absent", type=int, default=None, help="a rank that is not started")
    parser.add_argument("--netns", default="", help="prefix for one network namespace per rank")
    parser.add_argument(
        "--monitor", action="store_true", help="a process with RANK in addition to the ranks"
    )
    parser.add_argument("--events", default="", help="event file of the job (see training.py)")
    parser.add_argument("--kill-others", action="store_true", help="end the job when a rank fails")
    parser.add_argument("rest", nargs="*", help="options of the workload, after --")
    return parser.parse_args()


def environment() -> dict[str, str]:
    """One thread per library: many ranks share few cores here."""
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    quiet["PYTHONPATH"] = str(ROOT)
    return {**os.environ, **quiet}


def program(args: argparse.Namespace) -> list[str]:
    """The command of one rank."""
    module = "testbed.workloads." + MODULES[args.framework]
    return [args.python, "-m", module, "--events", args.events, *args.rest]


def exit_code(status: int) -> int:
    """A child's status as a shell would report it."""
    return status if status >= 0 else 128 - status


class Ranks:
    """The rank processes of one job whose ranks are started here."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._gone: set[int] = set()
        self._log = EventLog(args.events, None)
        self.restart_wanted = False

    def start(self) -> None:
        """Start all ranks with the variables that torchrun would set."""
        args, port = self._args, free_port()
        for rank in range(args.world):
            if rank == args.absent:
                continue
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(args.world),
                "LOCAL_WORLD_SIZE": str(args.world),
                "MASTER_ADDR": network.address(0) if args.netns else "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            prefix = network.inside(args.netns, rank) if args.netns else []
            if args.netns:
                variables["GLOO_SOCKET_IFNAME"] = network.DEVICE
            command = [*prefix, *program(args)]
            stdin = None if rank == 0 else subprocess.DEVNULL
            child = subprocess.Popen(command, env={**environment(), **variables}, stdin=stdin)
            self._children[rank] = child
        if args.absent is not None:
            self._log.write("fault", kind="absent", culprit=args.absent, target=None)

    def kill(self, rank: int) -> None:
        """End one rank by force, as a launcher does that takes it for dead."""
        self._children[rank].kill()

    def stop(self) -> None:
        """Ask all ranks to end; after 5 s end them by force."""
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()
        self._gone.clear()

    def wait(self) -> int:
        """Wait for all ranks; returns the exit code for the job."""
        failed = 0
        while len(self._gone) < len(self._children) or self.restart_wanted:
            if self.restart_wanted:
                self.restart_wanted = False
                self._log.write("restart")
                self.stop()
                self.start()
            code = self._reap()
            failed = failed or code
            if failed and self._args.kill_others:
                self.stop()
            time.sleep(POLL_S)
        return failed

    def _reap(self) -> int:
        """Write down the ranks that ended since the last call; returns a bad exit code, or 0."""
        failed = 0
        for rank, child in self._children.items():
            status = child.poll()
            if status is not None and rank not in self._gone:
                self._gone.add(rank)
                self._log.write("rank_exit", of=rank, code=exit_code(status))
                failed = failed or exit_code(status)
        return failed


def mpirun(args: argparse.Namespace) -> int:
    """Run the MPI job over TCP on the loopback and return mpirun's own exit code."""
    command = network.inside(args.netns, 0) if args.netns else []
    command += ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(args.world)]
    # TCP, because the network faults need sockets; over shared memory the kernel sees nothing.
    command += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    command += ["--mca", "oob_tcp_if_include", "lo", "--mca", "mpi_yield_when_idle", "1"]
    child = subprocess.Popen([*command, *program(args)], env=environment())
    try:
        return exit_code(child.wait())
    finally:
        child.terminate()
        child.wait()


def variables_of(kind: str, node: int) -> dict[str, str]:
    """What surrounds such a job sets: for a node, never for a rank."""
    if kind == "spawn-node":  # two pods of a PyTorchJob v1
        return {"RANK": str(node), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    # the batch script of an allocation
    return {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"} if kind == "spawn-slurm" else {}


def own_launcher(args: argparse.Namespace, folder: str) -> int:
    """Run a job that starts its ranks by itself: one program, or one for each node or rank."""
    counts = {"spawn-node": 2, "numbered": args.world, "bare": args.world}
    common = {"RENDEZVOUS_FILE": f"{folder}/ranks", "MASTER_PORT": str(free_port())}
    common |= {"RENDEZVOUS_PORT": common["MASTER_PORT"], **environment()}
    rest = ["--events", args.events, *args.rest]
    hosts = json.dumps({"localhost": [*range(args.world)]}).encode()
    words = {"python": args.python, "own": OWN, "torch": TORCH, "port": common["MASTER_PORT"]}
    words |= {"world": str(args.world), "half": str(args.world // 2)}
    words |= {"hosts": base64.urlsafe_b64encode(hosts).decode()}
    children = []
    for number in range(counts.get(args.framework, 1)):
        command: list[str] = []
        for word in COMMANDS[args.framework].split():
            command += rest if word == "{rest}" else [word.format(rank=number, **words)]
        command += [] if "{rest}" in COMMANDS[args.framework] else rest
        variables = variables_of(args.framework, number)
        children.append(subprocess.Popen(command, env={**common, **variables}))
    try:
        return max(exit_code(child.wait()) for child in children)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def network_members(framework: str, world: int) -> int:
    """Number of network namespaces for the given number of ranks."""
    return 1 if framework == "mpi" else world


@contextmanager
def monitor(args: argparse.Namespace) -> Iterator[None]:
    """Keep a monitor of rank 0 next to the job, if it is wanted; only where ranks are numbered."""
    if not args.monitor or args.framework in COMMANDS:
        yield
        return
    command = [args.python, "-m", "testbed.workloads.background", "monitor"]
    variables = {**environment(), "RANK": "0", "WORLD_SIZE": str(args.world)}
    child = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()


def run(args: argparse.Namespace) -> int:
    """Run the job to its end and return its exit code."""
    if args.framework == "mpi":
        return mpirun(args)
    if args.framework in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            return own_launcher(args, folder)
    if args.framework not in gpu_styles.STYLES:
        return run_ranks(args)
    with tempfile.TemporaryDirectory(dir=Path(args.events).parent) as folder:
        os.environ.update(gpu_styles.variables(args.framework, Path(folder), free_port()))
        return run_ranks(args)


def run_ranks(args: argparse.Namespace) -> int:
    """Start the ranks here, wait for them, and do what signals ask for."""
    ranks = Ranks(args)

    def restart(number: int, frame: FrameType | None) -> None:
        ranks.restart_wanted = True

    def kill(number: int, frame: FrameType | None) -> None:
        ranks.kill(number - signal.SIGRTMIN)

    signal.signal(signal.SIGUSR1, restart)
    for rank in range(args.world):
        signal.signal(signal.SIGRTMIN + rank, kill)
    try:
        ranks.start()
        return ranks.wait()
    finally:
        ranks.stop()


def end(number: int, frame: FrameType | None) -> None:
    """Leave through the clean-up code."""
    raise SystemExit(128 + number)


def main() -> int:
    """Start, wait, clean up."""
    args = arguments()
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    EventLog(args.events, None).write("launch", cgroup=Path("/proc/self/cgroup").read_text())
    try:
        if args.netns:
            network.create(args.netns, network_members(args.framework, args.world) + args.monitor)
        with monitor(args):
            code = run(args)
        EventLog(args.events, None).write("job_exit", code=code)
        return code
    finally:
        if args.netns:
            network.remove(args.netns)


if __name__ == "__main__":
    sys.exit(main())
