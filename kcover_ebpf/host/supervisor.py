"""The supervisor: a small process between sensor and job, which can outlive the sensor.

It starts the job in a control group with all privileges of the user (the sensor drops its own) and ends it on
request. It removes the group when the job has ended, however the sensor ended. If the sensor dies without a message,
the job runs to its end. The supervisor is forked before anything large is loaded; `host.supervisor_client` is the
sensor's side of it.

Orders, one JSON text per packet:
    {"do": "start"}
    {"do": "end", "ask": BOOL, "grace_s": S}
    {"do": "signal", "number": N}
    {"do": "follow", "processes": [[PID, START_TICKS], ...]}
    {"do": "kill"}
    {"do": "panel", "restore": TEXT}
Reports:
    {"is": "ready", "group": PATH or null}
    {"is": "started", "pid": N}
    {"is": "failed", "why": TEXT}
    {"is": "ended", "pid": N, "code": N, "killed": N}
    {"is": "killed", "left": [PID, ...]}
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any, Protocol

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import cgroups, process_tree, terminate
from kcover_ebpf.tunables.host import (
    GROUP_REMOVE_S,
    KILL_WAIT_S,
    LEFTOVER_GRACE_S,
    SUPERVISOR_POLL_S,
    SUPERVISOR_POLL_STUCK_S,
)

PACKET_BYTES = 65536
"""Bytes of the largest order or report."""
GROUP_PREFIX = "kcover-run"
"""Prefix of the name of a job's control group; the pid of its sensor follows."""
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals for the job: schedulers announce with them that its time is nearly over."""
_IGNORED = (
    *FORWARDED,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h


class Killable(Protocol):
    """The processes that the supervisor may end."""

    def pids(self) -> set[int]:
        """The current members; empty once all have ended."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a supervisor starts or watches, and may end."""

    argv: tuple[str, ...] = ()
    """Command of the job; empty when a running job is watched."""
    output_to_stderr: bool = False
    """Redirect the job's standard output to our standard error."""
    watched_group: Path | None = None
    """Control group of a running job; None if there is a command, or the sensor names the processes."""


def keep(charge: Charge, sensor: socket.socket) -> None:
    """Run as the supervisor until both the sensor and the job have ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = _Supervisor(charge, sensor)
    try:
        supervisor.serve()
    finally:
        if supervisor.group is not None:
            # A process leaves cgroup.procs before it leaves the group, so rmdir may fail with EBUSY
            # for a moment.
            deadline = time.monotonic() + GROUP_REMOVE_S
            while not cgroups.remove(supervisor.group) and time.monotonic() < deadline:
                time.sleep(SUPERVISOR_POLL_S / 10)


class _Supervisor:
    def __init__(self, charge: Charge, sensor: socket.socket) -> None:
        self._charge = charge
        self._sensor: socket.socket | None = sensor
        self._signals = {number: signal.getsignal(number) for number in _IGNORED}
        self._process_group = os.getpgrp()
        # A separate process group: a signal to the sensor's whole group must not end us with it.
        os.setpgid(0, 0)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.group = cgroups.make_for_job(GROUP_PREFIX, os.getppid()) if charge.argv else None
        self._main: int | None = None
        self._code: int | None = None
        self._kill_at: float | None = None
        self._kill_count = 0
        self._ending = False
        self._stuck = False
        """Killed processes have not ended; the only thing left is to wait."""
        self._restore = ""
        self._target = self._choose_target()

    def _choose_target(self) -> Killable:
        ours = frozenset({os.getpid(), os.getppid()})
        if (group := self.group or self._charge.watched_group) is not None:
            return cgroups.CgroupTarget(group, "job", ours)
        # A job that we start has no control group: as subreaper we adopt its orphans, so our descendants are
        # the job. Of a running job the sensor, which has watched it, names the processes.
        return process_tree.ProcessTree(os.getpid() if self._charge.argv else None, ours)

    def serve(self) -> None:
        self._report({"is": "ready", "group": str(self.group) if self.group else None})
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        if self._sensor is not None:
            poller.register(self._sensor, select.POLLIN)
        while self._is_needed():
            for descriptor, _ in poller.poll(self._patience_ms()):
                if descriptor == self._woken:
                    os.read(self._woken, 4096)
                elif (order := self._receive()) is not None:
                    self._obey(order)
                else:
                    poller.unregister(descriptor)
                    self._live_on()
            self._reap()
            self._advance()

    def _is_needed(self) -> bool:
        if self._sensor is not None or self._main is not None:
            return True
        return bool(self._charge.argv and self._target.pids())

    def _patience_ms(self) -> float | None:
        """Milliseconds that a poll may take; None: until an order arrives or a child ends."""
        if self._stuck:
            return SUPERVISOR_POLL_STUCK_S * 1000
        if self._kill_at is not None or self._code is not None:
            return SUPERVISOR_POLL_S * 1000
        return None

    def _receive(self) -> dict[str, Any] | None:
        if self._sensor is None:
            return None
        try:
            packet = self._sensor.recv(PACKET_BYTES)
        except OSError:
            return None
        return json.loads(packet) if packet else None

    def _report(self, report: dict[str, Any]) -> None:
        if self._sensor is not None:
            with contextlib.suppress(OSError):  # if the sensor has died, the poll reports it too
                self._sensor.send(json.dumps(report).encode())

    def _obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "start":
                self._start()
            case "end":
                if order["ask"]:
                    terminate.ask_to_end(self._target.pids)
                self._ending = True
                self._kill_at = time.monotonic() + order["grace_s"]
            case "signal":
                self._forward(order["number"])
            case "follow":
                # a control group lists its processes itself
                if isinstance(self._target, process_tree.ProcessTree):
                    self._target.follow(dict(order["processes"]))
            case "kill":
                self._kill()
            case "panel":
                self._restore = order["restore"]

    def _start(self) -> None:
        import subprocess  # only we need it, not the sensor

        self._kill_count = 0
        self._stuck = False
        try:
            child = subprocess.Popen(
                self._charge.argv,
                stdout=2 if self._charge.output_to_stderr else None,
                close_fds=False,  # our descriptors close on exec; those that the user passed are for the job
                preexec_fn=self._become_job,  # noqa: PLW1509 - this process has one thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._report({"is": "failed", "why": getattr(error, "strerror", None) or str(error)})
            return
        self._main = child.pid
        child.returncode = 0  # we reap it ourselves, together with the orphans
        self._report({"is": "started", "pid": child.pid})

    def _become_job(self) -> None:
        """Set up the child between fork and exec as the user's shell would have, but in the job's group."""
        if self.group is not None:
            cgroups.join(self.group)
        os.setpgid(0, self._process_group)  # so that the terminal stays with the job
        for number, action in self._signals.items():
            ignored = action is signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)

    def _forward(self, number: int) -> None:
        """Send a signal to the job's first process, as if it had been started in the sensor's place."""
        if (
            self._main is not None and self._code is None
        ):  # not reaped yet, so the pid is still its own
            os.kill(self._main, number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._main:
                    self._code = os.waitstatus_to_exitcode(ended[1])

    def _advance(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()
        if self._code is None:
            return
        if not self._target.pids():
            self._report(
                {
                    "is": "ended",
                    "pid": self._main,
                    "code": self._code,
                    "killed": self._kill_count,
                }
            )
            self._main = self._code = self._kill_at = None
            self._stuck = False
        elif self._ending:
            # The first process got the user's Ctrl-C; its remaining children may not have.
            self._ending = False
            terminate.ask_to_end(self._target.pids)
        elif self._kill_at is None and not self._stuck:
            self._kill_at = time.monotonic() + LEFTOVER_GRACE_S

    def _kill(self) -> None:
        self._kill_count = len(self._target.pids())
        group = self.group or self._charge.watched_group
        if group is not None and cgroups.processes(group) - self._target.pids():
            group = None  # the sensor is in this group too
        left = terminate.kill_whole(self._target.pids, group, KILL_WAIT_S)
        self._kill_at = None
        self._stuck = bool(left)
        self._reap()
        self._report({"is": "killed", "left": sorted(left)})

    def _live_on(self) -> None:
        """The sensor is gone: close the terminal and its pipes, and stay only for the job."""
        self._sensor = None
        if self._restore:
            with contextlib.suppress(OSError):
                os.write(1, self._restore.encode())
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.chdir("/")
