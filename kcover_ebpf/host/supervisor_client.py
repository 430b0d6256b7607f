"""The sensor's side of the supervisor (`host.supervisor`): starts the job, ends it, and learns how it ended.

Call `Supervisor.fork` before anything is loaded, opened or threaded that the job must not inherit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kcover_ebpf.errors import ActionError, UsageError
from kcover_ebpf.host import supervisor
from kcover_ebpf.host.supervisor import Charge
from kcover_ebpf.tunables.host import SUPERVISOR_ANSWER_S, SUPERVISOR_CLOSE_S

_NAMED_AT_ONCE = 1024
"""Processes in one order: each takes 30 bytes at most of a packet's `PACKET_BYTES`."""


class Supervisor:
    """A running supervisor, and what it has reported so far."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        """Takes ownership of a running supervisor; use `Supervisor.fork` instead."""
        self.pid = pid
        self.group: Path | None = None
        """Control group of the job; None if the host does not allow one."""
        self.job_pid: int | None = None
        self.job_code: int | None = None
        """How its first process ended: exit code, or minus the signal; None while it runs."""
        self.left_behind_count = 0
        """Processes that had to be killed after the job's first process had ended."""
        self.unkillable: tuple[int, ...] = ()
        """Pids that were killed but do not end."""
        self.lost = False
        """True if the supervisor itself died; there will be no more reports about the job."""
        self._channel = channel

    @classmethod
    def fork(cls, charge: Charge) -> Supervisor:
        """Fork the supervisor and wait until it is ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                supervisor.keep(charge, theirs)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        made_supervisor = cls(pid, ours)
        made_supervisor._await("ready")
        return made_supervisor

    def fileno(self) -> int:
        """Becomes readable when there are reports; then call `poll`."""
        return self._channel.fileno()

    def start(self) -> int:
        """Start (or restart) the job; returns the pid of its first process. `UsageError` if it cannot run."""
        self.job_pid = self.job_code = None
        self._order({"do": "start"})
        report = self._await("started", "failed")
        if report["is"] == "failed":
            raise UsageError(f"cannot start the command: {report['why']}")
        self.job_pid = int(report["pid"])
        return self.job_pid

    def end(self, grace_s: float, *, ask: bool = True) -> None:
        """Send SIGTERM to all of the job (if `ask`), and SIGKILL after `grace_s` seconds; does not wait."""
        with contextlib.suppress(ActionError):
            self._order({"do": "end", "ask": ask, "grace_s": grace_s})

    def follow(self, identities: Mapping[int, int]) -> None:
        """Name processes (pid -> start_ticks) that the next orders are about, beside those that it knows itself.

        `ActionError` if the supervisor is lost.
        """
        processes = list(identities.items())
        for begin in range(0, len(processes), _NAMED_AT_ONCE):
            self._order({"do": "follow", "processes": processes[begin : begin + _NAMED_AT_ONCE]})

    def forward(self, number: int) -> None:
        """Send a signal to the first process of a job that we started; none if it has ended."""
        with contextlib.suppress(ActionError):
            self._order({"do": "signal", "number": number})

    def kill(self) -> None:
        """Stop all processes of the job, then kill them; does not wait."""
        with contextlib.suppress(ActionError):
            self._order({"do": "kill"})

    def kill_and_wait(self) -> tuple[int, ...]:
        """As `kill`, but waits; returns the pids that do not end. `ActionError` if the supervisor is lost."""
        self._order({"do": "kill"})
        return tuple(self._await("killed")["left"])

    def restore_on_death(self, text: str) -> None:
        """Text that the supervisor writes to the terminal if we die without a message; empty: nothing."""
        with contextlib.suppress(ActionError):
            self._order({"do": "panel", "restore": text})

    def poll(self) -> None:
        """Take over the supervisor's reports; never waits."""
        while not self.lost and select.select([self._channel], [], [], 0)[0]:
            self._receive()

    def close(self) -> None:
        """Release the supervisor. Waits a moment, so that the job's group is removed before we exit."""
        self._channel.close()
        deadline = time.monotonic() + SUPERVISOR_CLOSE_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.005)

    def _order(self, order: dict[str, Any]) -> None:
        try:
            self._channel.send(json.dumps(order).encode())
        except OSError as error:
            self.lost = True
            raise ActionError("the supervisor of the job died; the job is left alone") from error

    def _await(self, *kinds: str) -> dict[str, Any]:
        deadline = time.monotonic() + SUPERVISOR_ANSWER_S
        while (patience_s := deadline - time.monotonic()) > 0:
            if select.select([self._channel], [], [], patience_s)[0]:
                report = self._receive()
                if report is None:
                    break
                if report["is"] in kinds:
                    return report
        raise ActionError("the supervisor of the job does not answer; the job is left alone")

    def _receive(self) -> dict[str, Any] | None:
        try:
            packet = self._channel.recv(supervisor.PACKET_BYTES)
        except ConnectionResetError:
            packet = b""
        if not packet:
            self.lost = True
            return None
        report: dict[str, Any] = json.loads(packet)
        match report["is"]:
            case "ready":
                self.group = Path(report["group"]) if report["group"] else None
            case "ended":
                if report["pid"] == self.job_pid:  # reports from before this start do not count
                    self.job_code, self.left_behind_count = report["code"], report["killed"]
            case "killed":
                self.unkillable = tuple(report["left"])
        return report
