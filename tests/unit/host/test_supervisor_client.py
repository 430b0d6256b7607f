"""The supervisor of a real, tiny job; a whole run is in tests/kernel."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcover_ebpf.host.process_tree import PidTarget, is_same_alive
from kcover_ebpf.host.supervisor import Charge
from kcover_ebpf.host.supervisor_client import Supervisor
from tests.unit.support.children import start_ticks_of
from tests.waiting import until


@contextmanager
def supervisor_of(charge: Charge) -> Iterator[Supervisor]:
    made = Supervisor.fork(charge)
    try:
        yield made
    finally:
        made.close()


def has_ended(supervisor: Supervisor) -> bool:
    """True once it has reported the end of the job, or is gone itself."""
    supervisor.poll()
    return supervisor.lost or supervisor.job_code is not None


def test_supervisor__kills_the_orphans_of_a_watched_process_that_has_ended() -> None:
    with (
        subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"]) as job,
        supervisor_of(Charge()) as supervisor,
    ):
        target = PidTarget(job.pid, "job")
        until(lambda: len(target.pids()) == 3, "both children")
        orphans = {pid: ticks for pid, ticks in target.identities().items() if pid != job.pid}
        job.kill()
        job.wait()
        assert target.identities() == orphans
        supervisor.follow(orphans)
        assert supervisor.kill_and_wait() == ()
        assert not any(is_same_alive(pid, ticks) for pid, ticks in orphans.items())


def test_supervisor__a_process_with_a_reused_number_is_not_killed() -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as stranger,
        supervisor_of(Charge()) as supervisor,
    ):
        supervisor.follow({stranger.pid: start_ticks_of(stranger.pid) - 1})
        assert supervisor.kill_and_wait() == ()
        assert stranger.poll() is None
        stranger.kill()


def test_supervisor__more_processes_than_one_packet_holds() -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as last,
        supervisor_of(Charge()) as supervisor,
    ):
        gone = dict.fromkeys(range(2**22, 2**22 + 5000), 2**40)
        supervisor.follow(gone | {last.pid: start_ticks_of(last.pid)})
        assert supervisor.kill_and_wait() == ()
        assert last.wait(10) == -signal.SIGKILL


def test_supervisor__a_schedulers_warning_is_the_jobs_to_handle(tmp_path: Path) -> None:
    ready, script = tmp_path / "ready", "trap 'exit 7' USR1; : > $0; while :; do sleep 0.02; done"
    with supervisor_of(Charge(("sh", "-c", script, str(ready)))) as supervisor:
        supervisor.start()
        until(ready.exists, "the job to handle the signal")
        os.kill(supervisor.pid, signal.SIGUSR1)  # sent to all processes of the run
        supervisor.forward(signal.SIGUSR1)
        until(lambda: has_ended(supervisor))
        assert (supervisor.lost, supervisor.job_code) == (False, 7)


def test_supervisor__a_job_without_a_handler_ends_by_the_warning() -> None:
    with supervisor_of(Charge(("sleep", "60"))) as supervisor:
        supervisor.start()
        supervisor.forward(signal.SIGUSR2)
        until(lambda: has_ended(supervisor))
        assert supervisor.job_code == -signal.SIGUSR2
        supervisor.forward(signal.SIGUSR2)  # to none
        assert not supervisor.lost
