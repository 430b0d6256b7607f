"""A real Slurm of two hosts, each a network namespace with a host name: munged, slurmctld, and a slurmd on each."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.workloads import network

PREFIX = "kcslurm"
_NAMED = 'mount --bind "$0" /etc/hosts; hostname "$1"; shift; exec "$@"'
# a job that is queued again begins once its old credential has expired, two minutes later by default
_CONF = """
ClusterName=kcover
SlurmctldHost=host0({first})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ReturnToService=2
KillWait=2
{more}
NodeName=host0 NodeAddr={first} CPUs=2
NodeName=host1 NodeAddr={second} CPUs=2
PartitionName=all Nodes=host0,host1 Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The commands of a user, on the first host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def submit(self, *words: str, environ: Mapping[str, str] | None = None) -> int:
        """The number of the job of a batch script and its options."""
        variables = self.environ | dict(environ or {})
        return int(self._said("sbatch", "--parsable", *words, environ=variables))

    def field(self, job: int, name: str) -> str:
        """One field of the job, as `scontrol show job` prints it."""
        found = re.search(
            rf"\b{name}=(\S*)", self._said("scontrol", "--oneliner", "show", "job", str(job))
        )
        assert found is not None
        return found[1]

    def cancel(self, job: int) -> None:
        self._said("scancel", str(job))

    def are_idle(self) -> bool:
        """Whether both hosts have registered."""
        return self._said("sinfo", "--noheader", "--format=%t %D").split() == ["idle", "2"]

    def _said(self, *words: str, environ: Mapping[str, str] | None = None) -> str:
        command = [*_on(0, self._folder), *words]
        done = subprocess.run(
            command, env=environ or self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def _on(host: int, folder: Path) -> list[str]:
    space = f"--net=/run/netns/{network.name(PREFIX, host)}"
    enter = ["nsenter", space, "unshare", "--uts", "--mount", "sh", "-c", _NAMED]
    return [*enter, str(folder / "hosts"), f"host{host}"]


@contextmanager
def running(folder: Path, more: str = "") -> Iterator[Slurm]:
    """Slurm, with further lines of slurm.conf."""
    network.remove(PREFIX)
    network.create(PREFIX, 2)
    first, second = network.address(0), network.address(1)
    (folder / "slurm.conf").write_text(
        _CONF.format(folder=folder, first=first, second=second, more=more)
    )
    names = [f"{network.address(host)} host{host}" for host in range(2)]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o600)
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    slurm = Slurm(folder)
    conf = str(folder / "slurm.conf")
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, host: int, name: str) -> None:
        with (folder / name).open("wb") as log:
            started.append(
                subprocess.Popen(
                    [*_on(host, folder), *command], stdout=log, stderr=log, env=slurm.environ
                )
            )

    socket = f"--socket={folder}/munge.socket"
    try:
        start("munged", "--foreground", "--force", socket, *munge, host=0, name="munged.log")
        _until((folder / "munge.socket").exists)
        start("slurmctld", "-D", "-f", conf, host=0, name="slurmctld.log")
        for host in range(2):
            start("slurmd", "-D", "-f", conf, host=host, name=f"slurmd{host}.log")
        _until(slurm.are_idle)
        yield slurm
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(20)
        _end_all()


def _end_all() -> None:
    """What is left of jobs: the step daemons of one that was not done outlive Slurm, and hold up the next one."""
    for host in range(2):
        asked = ("ip", "netns", "pids", network.name(PREFIX, host))
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        for pid in map(int, said.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    network.remove(PREFIX)


def _until(reached: object) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if callable(reached) and reached():
                return
        except AssertionError:  # its daemon does not answer yet
            pass
        assert time.monotonic() < deadline, "Slurm did not come up"
        time.sleep(0.3)
