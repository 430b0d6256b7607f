"""Starts the parts of a run in the required order, and ends them in reverse order.

The supervisor is forked before anything is loaded, bound or threaded, so that the job inherits none of it. The port
is bound before BPF is loaded, so that a port in use costs nothing. Privileges are dropped before the first
long-lived thread starts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kcover_ebpf import __version__
from kcover_ebpf.host import capabilities, cgroups, process_tree
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.host.supervisor import Charge
from kcover_ebpf.host.supervisor_client import Supervisor
from kcover_ebpf.kernel import features
from kcover_ebpf.run import terminal_table
from kcover_ebpf.run.options import RunOptions
from kcover_ebpf.run.out import Out, QueuedOut
from kcover_ebpf.run.outcome import Outcome
from kcover_ebpf.run.sinks import Announcer, JsonSink, Sink, TextSink
from kcover_ebpf.settings import Act
from kcover_ebpf.watching import start
from kcover_ebpf.watching.start import FactSources

if TYPE_CHECKING:
    import socket

    from kcover_ebpf.devices.watch import DeviceWatch
    from kcover_ebpf.kernel.sampler import KernelSampler
    from kcover_ebpf.output.metrics import MetricsServer, RunMetrics
    from kcover_ebpf.run.job_log import JobLog
    from kcover_ebpf.run.join.options import JoinOptions
    from kcover_ebpf.run.live_board import BoardSink
    from kcover_ebpf.run.recording import Tape
    from kcover_ebpf.run.session import Session

_STDOUT = 1
_SESSION = "kcover_ebpf.run.session"
_KEPT = capabilities.KEPT - {
    # The supervisor starts and ends the job, with its own privileges.
    Capability.KILL,
    Capability.SETGID,
    Capability.SETUID,
}


def carry_out(options: RunOptions) -> int:
    """Carry out the plan; returns the exit code."""
    features.require_privileges()
    with contextlib.ExitStack() as stack:
        return _Run(options, stack).carry_out()


class _Run:
    """One run under construction; closing `stack` ends its parts."""

    def __init__(self, options: RunOptions, stack: contextlib.ExitStack) -> None:
        self._plan, self._stack = options, stack
        self._begin_s = time.monotonic()
        self._board: BoardSink | None = None
        # The table is drawn by escape sequences, so it needs a terminal in whose foreground we are.
        self._is_live = not options.json and terminal_table.fits(_STDOUT)

    def carry_out(self) -> int:
        plan = self._plan
        supervisor = self._fork_supervisor()
        server = start.bind_metrics(plan.metrics, self._stack)
        listener = self._listen()
        tape = self._open_tape()
        announcer = self._make_announcer(supervisor, tape)
        sources = self._open_sources()
        from kcover_ebpf.run.session import Session

        kernel, devices = sources.kernel, sources.devices
        start.drop_privileges(_KEPT, plan.settings)
        extra = () if server is None else (self._serve(server, kernel, devices),)
        target = self._make_target(supervisor)
        writer = None if tape is None else tape.writer
        job_log = self._open_log()
        parts = (plan, kernel, target, supervisor, announcer, extra, devices, writer, job_log)
        session = Session(*parts) if plan.join is None else self._joined(plan.join, listener, parts)
        if self._board is not None:
            self._board.job_of = lambda: session.job
        session.catch_signals()
        if job_log is not None:
            job_log.begin(is_first=bool(plan.argv))
        if plan.argv and supervisor is not None:
            supervisor.start()
        announcer.on_start(self._start_fields(kernel, supervisor, server))
        ended = session.run()
        announcer.on_end(self._end_fields(ended, session.restart_count))
        return ended.exit_code

    def _fork_supervisor(self) -> Supervisor | None:
        """Fork the process that starts and ends jobs, and restores the terminal if we are killed."""
        plan = self._plan
        may_end = plan.settings.act in (Act.SHUTDOWN, Act.RESTART)
        if not plan.argv and not may_end and not self._is_live:
            return None
        supervisor = Supervisor.fork(Charge(plan.argv, plan.json, plan.cgroup))
        self._stack.callback(supervisor.close)
        return supervisor

    def _listen(self) -> socket.socket | None:
        """The socket for the other hosts of a joined run; None if this host is not the one that they name."""
        if self._plan.join is None:
            return None
        from kcover_ebpf.run.join import coordinator

        return coordinator.bind(self._plan.join)

    def _joined(
        self, join: JoinOptions, listener: socket.socket | None, parts: tuple[Any, ...]
    ) -> Session:
        from kcover_ebpf.run.join.coordinator import Coordinator
        from kcover_ebpf.run.join.joined_gang import JoinedGang
        from kcover_ebpf.run.join.joined_session import JoinedSession
        from kcover_ebpf.run.join.member import Member
        from kcover_ebpf.run.join.messages import Hello

        plan = self._plan
        if listener is not None:
            gang = JoinedGang(plan.name, join.hosts, plan.settings)
            coordinator = Coordinator(listener, gang, join)
            coordinator.start()
            self._stack.callback(coordinator.close)
        host, word = os.uname().nodename, os.urandom(16).hex()
        hello = Hello(host, plan.name, join.hosts, plan.settings.act, run=word)
        member = Member(join, hello)
        member.start()
        self._stack.callback(member.close)
        return JoinedSession(member, *parts)

    def _serve(
        self, server: MetricsServer, kernel: KernelSampler, devices: DeviceWatch
    ) -> RunMetrics:
        from kcover_ebpf.output.metrics import RunMetrics

        sink = RunMetrics.of(kernel, devices)
        server.serve(sink.registry)
        return sink

    def _open_sources(self) -> FactSources:
        from kcover_ebpf.devices.telemetry.watch import TelemetryOptions

        settings = self._plan.settings
        telemetry = TelemetryOptions(settings.gpu_period_s)
        catalog = self._plan.catalog
        return start.open_sources(settings, catalog, telemetry, self._stack, [_SESSION])

    def _open_tape(self) -> Tape | None:
        if self._plan.record is None:
            return None
        from kcover_ebpf.run.recording import Tape

        tape = Tape(self._plan, self._plan.record)
        self._stack.callback(tape.writer.close)
        return tape

    def _open_log(self) -> JobLog | None:
        plan = self._plan
        if not plan.logs:
            return None
        from kcover_ebpf.run.job_log import JobLog

        job_log = JobLog(plan.logs, plan.job_rules, plan.settings.longest_phase_s)
        self._stack.callback(job_log.close)
        return job_log

    def _make_announcer(self, supervisor: Supervisor | None, tape: Tape | None) -> Announcer:
        out = QueuedOut(_STDOUT)
        self._stack.callback(out.close)
        more: list[Sink] = [] if tape is None else [tape]
        if self._plan.json:
            return Announcer([JsonSink(out), *more], wants_waits=False)
        if not self._is_live or supervisor is None:
            return Announcer([TextSink(out), *more], wants_waits=False)
        live = self._live_sink(out, supervisor)
        self._stack.callback(live.close)
        return Announcer([live, *more], wants_waits=True)

    def _live_sink(self, out: Out, supervisor: Supervisor) -> terminal_table.LiveSink:
        if not self._plan.live:
            return terminal_table.LiveSink(out, supervisor.restore_on_death)
        from kcover_ebpf.run.live_board import BoardSink

        options = self._plan
        self._board = BoardSink(
            out, supervisor.restore_on_death, options.name, options.settings.act
        )
        return self._board

    def _make_target(
        self, supervisor: Supervisor | None
    ) -> cgroups.CgroupTarget | process_tree.PidTarget:
        """The job to watch; never includes ourselves or the supervisor."""
        plan = self._plan
        ours = frozenset({os.getpid()} | ({supervisor.pid} if supervisor else set()))
        if plan.pid is not None:
            return process_tree.PidTarget(plan.pid, plan.name, ours)
        if plan.cgroup is not None:
            return cgroups.CgroupTarget(plan.cgroup, plan.name, ours)
        assert supervisor is not None
        if supervisor.group is not None:
            return cgroups.CgroupTarget(supervisor.group, plan.name, ours)
        return process_tree.PidTarget(supervisor.pid, plan.name, ours)

    def _start_fields(
        self, kernel: KernelSampler, supervisor: Supervisor | None, server: MetricsServer | None
    ) -> dict[str, Any]:
        from kcover_ebpf.kernel.probes import costly

        plan = self._plan
        group = plan.cgroup or (supervisor.group if supervisor else None)
        pid = plan.pid or (supervisor.job_pid if supervisor else None)
        refused = costly(kernel.statuses)
        what = f"pid {pid}" if pid is not None else f"cgroup {group}"
        return {
            "job": plan.name,
            "version": __version__,
            "kernel": os.uname().release,
            "host": os.uname().nodename,
            "target": "command" if plan.argv else "pid" if plan.pid is not None else "cgroup",
            "argv": list(plan.argv),
            "pid": pid,
            "restart": 0,
            "cgroup": None if group is None else str(group),
            "act": plan.settings.act,
            "world_size": _world_size(os.environ if plan.argv else {}),
            "metrics_port": None if server is None else server.port,
            "unobserved": [f"{status.blind_to} ({status.reason})" for status in refused],
            "text": f"watching {plan.name} ({what}), act {plan.settings.act.value}"
            + "".join(f"; not observed: {status.blind_to}" for status in refused),
        }

    def _end_fields(self, ended_outcome: Outcome, restart_count: int) -> dict[str, Any]:
        return {
            "job": self._plan.name,
            "reason": ended_outcome.reason,
            "exit_code": ended_outcome.exit_code,
            "job_code": ended_outcome.job_code,
            "restart_count": restart_count,
            "duration_s": round(time.monotonic() - self._begin_s, 3),
            "text": ended_outcome.text,
        }


def _world_size(environ: Mapping[str, str]) -> int | None:
    """World size that a scheduler sets for the whole job; None if only the ranks know it."""
    text = environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else None
