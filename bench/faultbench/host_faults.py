"""Faults and phases from outside: signals, a debugger, neighbours, the sensor's own death."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.faultbench import cgroups, network_faults
from bench.faultbench.job import TAG_VARIABLE, tag_value
from bench.faultbench.live import Live

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17


def nothing(live: Live) -> None:
    """Watch a healthy job for the length of the phase."""
    live.begin_phase()
    live.sleep(live.run.scenario.phase_s)
    live.end_phase()


def kill(live: Live) -> None:
    """SIGKILL the culprit."""
    live.begin_fault()
    os.kill(live.pid(live.run.culprit), signal.SIGKILL)


def kill_by_launcher(live: Live) -> None:
    """Have the launcher kill the culprit."""
    live.begin_fault()
    os.kill(int(live.launcher()["pid"]), signal.SIGRTMIN + live.run.culprit)


def stop(live: Live) -> None:
    """SIGSTOP the culprit, not its workers."""
    live.begin_fault()
    os.kill(live.pid(live.run.culprit), signal.SIGSTOP)


def stop_all(live: Live) -> None:
    """Stop every process of the job and continue it later, as a scheduler's preemption does."""
    pids = live.pids()
    live.begin_phase()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    live.sleep(live.run.scenario.phase_s)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue
    live.end_phase()


def debugger(live: Live) -> None:
    """Hold all threads of a rank by ptrace, as gdb does, for the length of the phase."""
    live.begin_phase()
    # ptrace belongs to the thread that attached, so all of it happens in this one.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    tids = [int(t.name) for t in Path(f"/proc/{live.pid(live.run.culprit)}/task").iterdir()]
    for tid in tids:
        if libc.ptrace(PTRACE_SEIZE, tid, 0, 0) or libc.ptrace(PTRACE_INTERRUPT, tid, 0, 0):
            raise OSError(ctypes.get_errno(), f"ptrace of thread {tid} failed")
    live.sleep(live.run.scenario.phase_s)
    for tid in tids:
        os.waitpid(tid, 0x40000000)  # __WALL: threads too
        libc.ptrace(PTRACE_DETACH, tid, 0, 0)
    live.end_phase()


def neighbour(live: Live) -> None:
    """Twice as many busy processes as there are processors."""
    live.begin_phase()
    variables = {**os.environ, TAG_VARIABLE: tag_value(live.tag)}
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], env=variables)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    live.sleep(live.run.scenario.phase_s)
    for process in busy:
        process.kill()
        process.wait()
    live.end_phase()


def restart_ranks(live: Live) -> None:
    """Have the launcher end all ranks and start them again, as an elastic agent does."""
    world = live.run.world
    live.begin_phase()
    os.kill(int(live.launcher()["pid"]), signal.SIGUSR1)
    ready = 2 * world
    live.wait_for(lambda: count(live, "ready") >= ready, 120, "the restart")
    live.sleep(live.run.scenario.phase_s)
    live.end_phase()


def count(live: Live, name: str) -> int:
    """How many events of that name there are."""
    return sum(event["event"] == name for event in live.events())


def answer(live: Live) -> None:
    """Let the question to the user wait for the length of the phase, then answer it."""
    live.sleep(live.run.scenario.phase_s)
    live.jobs[0].answer()


def restart_sensor(live: Live) -> None:
    """Kill the sensor; a second one takes the running job over."""
    live.begin_phase()
    live.jobs[0].restart_sensor(job_cgroup(live))
    live.sleep(live.run.scenario.phase_s)
    live.end_phase()


def restart_sensor_then_stop(live: Live) -> None:
    """Kill the sensor, let a second one learn, then stop a rank."""
    live.jobs[0].restart_sensor(job_cgroup(live))
    live.sleep(15 + 6 * live.run.step_s)
    stop(live)


def job_cgroup(live: Live) -> str:
    """The path of the job's cgroup v2 below the mount point."""
    text = Path(f"/proc/{live.launcher()['pid']}/cgroup").read_text()
    relative = next(line[3:] for line in text.splitlines() if line.startswith("0::"))
    return str(cgroups.UNIFIED / relative.lstrip("/"))


BEGIN: dict[str, Callable[[Live], None]] = {
    "nothing": nothing,
    "kill": kill,
    "kill-by-launcher": kill_by_launcher,
    "stop": stop,
    "stop-all": stop_all,
    "debugger": debugger,
    "neighbour": neighbour,
    "restart-ranks": restart_ranks,
    "answer": answer,
    "restart-sensor": restart_sensor,
    "restart-sensor-then-stop": restart_sensor_then_stop,
    "freeze-v1": cgroups.freeze_v1,
    "freeze-v2": cgroups.freeze_v2,
    "quota-1": cgroups.quota_1,
    **network_faults.BEGIN,
}
ARM: dict[str, Callable[[Live], None]] = {
    "limit-rank-memory": cgroups.limit_rank_memory,
    "limit-worker-memory": cgroups.limit_worker_memory,
    "limit-with-swap": cgroups.limit_with_swap,
    "throttle-disk": cgroups.throttle_disk,
    "cut-telemetry": network_faults.cut_telemetry,
}
