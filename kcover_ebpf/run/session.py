"""One `kcover-ebpf run`: start, watch, act, restart; and the signals that end it.

`run.main` builds the parts. If this process dies, the supervisor notices it, lets the job run to its end, and
cleans up.
"""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType
from typing import TYPE_CHECKING

from kcover_ebpf.devices.watch import DeviceWatch
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.errors import ActionError, CannotObserve, KcoverError
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.host.process_tree import ProcessTree, Witness
from kcover_ebpf.host.supervisor import FORWARDED
from kcover_ebpf.host.supervisor_client import Supervisor
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.run import outcome
from kcover_ebpf.run.options import RunOptions
from kcover_ebpf.run.outcome import Outcome, Reason
from kcover_ebpf.run.sinks import Announcer, Recent
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.host import END_SLACK_S, LAST_WORD_S, RUN_STACKS_S
from kcover_ebpf.watching.judging import InputRecorder, ObservationSink
from kcover_ebpf.watching.loop import Sensor, Target

if TYPE_CHECKING:
    from kcover_ebpf.run.job_log import JobLog

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Session:
    """One run, after everything was checked and loaded."""

    def __init__(  # noqa: PLR0913, PLR0917 - one part of the run each
        self,
        options: RunOptions,
        kernel: KernelSampler,
        target: Target,
        supervisor: Supervisor | None,
        announcer: Announcer,
        extra_sinks: tuple[ObservationSink, ...] = (),
        devices: DeviceWatch | None = None,
        recorder: InputRecorder | None = None,
        job_log: JobLog | None = None,
    ) -> None:
        """`supervisor`: None only if a job that is not ours is merely watched. `job_log`: None if no log was named."""
        self._plan, self._kernel, self._target = options, kernel, target
        self._supervisor, self._announcer = supervisor, announcer
        self._devices, self._recorder, self._log = devices, recorder, job_log
        self._recent = Recent()
        self._sinks: tuple[ObservationSink, ...] = (announcer, self._recent, *extra_sinks)
        self._owns_job = bool(options.argv)
        self._budget = options.settings.policy.restarts
        self.restart_count = 0
        self._end_s = None if options.for_s is None else time.monotonic() + options.for_s
        self._signal: signal.Signals | None = None
        self._first = Witness()
        """State of the first process of our job."""
        self._outcome: Outcome | None = None
        self._pause_s: float | None = None
        """Seconds until a pending restart; None if none is pending."""
        self._sensor = self._new_sensor()

    @property
    def job(self) -> Job:
        """The job now under watch; a new one after each restart."""
        return self._sensor.job

    def catch_signals(self) -> None:
        """Have signals end or reach the job from now on; those ignored when we were started (nohup) stay ignored."""
        actions = dict.fromkeys(_ENDING, self._on_signal) | dict.fromkeys(FORWARDED, self._forward)
        for number, action in actions.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, action)

    def run(self) -> Outcome:
        """Watch until the end; the job must have been started."""
        while True:
            self._watch()
            if self._pause_s is None:
                return self._finish()
            if not self._start_again():
                return self._finish()

    def _new_sensor(self) -> Sensor:
        return Sensor(
            self._kernel,
            self._target,
            self._plan.settings,
            self._sinks,
            self._carry_out,
            self._devices,
            self._recorder,
            reads_stacks=True,
            read_log=self._read_log,
        )

    def _read_log(self) -> LogSeen | None:
        return None if self._log is None else self._log.read()

    def _watch(self) -> None:
        try:
            self._sensor.run(self._is_over)
        except Exception as error:
            from kcover_ebpf.output.log_lines import blame

            if not self._owns_job:
                raise CannotObserve(f"the sensor failed: {blame(error)}") from error
            self._announcer.on_blind(f"the sensor failed, the job continues: {blame(error)}")
            while not self._is_over():
                self._wait_for_news(1.0)

    def _is_over(self) -> bool:
        if self._signal or self._outcome or self._pause_s is not None:
            return True
        if self._end_s is not None and time.monotonic() >= self._end_s:
            return True
        if not self._owns_job:
            return self._target.gone()
        assert self._supervisor is not None
        if self._supervisor.job_pid is not None and not self._lives(self._supervisor.job_pid):
            self._wait_for_news(LAST_WORD_S)
        self._supervisor.poll()
        return self._supervisor.job_code is not None or self._supervisor.lost

    def _lives(self, job_pid: int) -> bool:
        if self._first.pid != job_pid:
            self._first.hold(job_pid)
        return self._first.lives

    def _wait_for_news(self, timeout_s: float) -> None:
        if self._supervisor is not None and not self._supervisor.lost:
            select.select([self._supervisor], [], [], timeout_s)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        # a job that is merely watched gets its signals from whoever started it
        if self._owns_job and self._supervisor is not None:
            self._supervisor.forward(number)

    # ---- ending

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        first, self._signal = self._signal is None, self._signal or signal.Signals(number)
        self._announcer.hushed = True
        if not self._owns_job or self._supervisor is None:
            return
        if first:
            # From a terminal Ctrl-C has reached the job already; it may be saving its state now.
            ask = number != signal.SIGINT or not _in_foreground()
            self._supervisor.end(self._plan.settings.policy.grace_s, ask=ask)
        else:
            self._supervisor.kill()

    def _finish(self) -> Outcome:
        if self._outcome is not None:
            return self._outcome
        if self._signal is not None:
            self._await_end()
            return outcome.signalled(self._signal, ended_job=self._owns_job)
        if not self._owns_job:
            if self._target.pids():
                return self._time_over()
            return outcome.gone()
        assert self._supervisor is not None
        if self._supervisor.job_code is not None:
            return outcome.exited(self._supervisor.job_code, self._supervisor.left_behind_count)
        if self._supervisor.lost:
            return outcome.lost()
        self._announcer.hushed = True
        self._supervisor.end(self._plan.settings.policy.grace_s)
        self._await_end()
        return self._time_over()

    def _time_over(self) -> Outcome:
        verdict = self._announcer.verdict
        is_faulty = verdict is not None and verdict.kind.is_fault
        return outcome.time_over(is_faulty=is_faulty, ended_job=self._owns_job)

    def _await_end(self) -> None:
        """Wait until the job that we asked to end has ended, or cannot be killed."""
        supervisor = self._supervisor
        if not self._owns_job or supervisor is None or supervisor.job_pid is None:
            return
        end_s = time.monotonic() + self._plan.settings.policy.grace_s + END_SLACK_S
        while supervisor.job_code is None and not supervisor.unkillable and not supervisor.lost:
            if time.monotonic() >= end_s:
                return
            self._wait_for_news(0.5)
            supervisor.poll()

    # ---- acting

    def _carry_out(self, decision: Decision) -> None:
        is_ending = self._signal is not None or self._outcome is not None
        if is_ending or self._pause_s is not None or decision.act is Act.OBSERVE:
            return
        self._snapshot(decision)
        if decision.act is Act.SHUTDOWN:
            self._shut_down(decision, Reason.SHUTDOWN, "the job was shut down")
        elif decision.act is Act.RESTART:
            refusal = outcome.refusal(
                self._budget, self.restart_count, made_progress=self._made_progress
            )
            if refusal is not None:
                instead = Decision(Act.SHUTDOWN, f"{decision.reason}; {refusal}", decision.verdict)
                self._shut_down(instead, Reason.RESTARTS, f"not restarted: {refusal}")
            elif self._kill(decision):
                self.restart_count += 1
                # also before the first restart: unlike in a cluster, no controller has waited for all of the job to end
                self._pause_s = self._budget.pause_s(self.restart_count)

    @property
    def _made_progress(self) -> bool:
        """True if there was progress since the last start: by the job's log if that can show it, else by the judge."""
        logged = None if self._log is None else self._log.made_progress
        return self._sensor.made_progress if logged is None else logged

    def _snapshot(self, decision: Decision) -> None:
        # imported late: only a faulty job needs it
        from kcover_ebpf.archive.node_part import EvidenceTrigger
        from kcover_ebpf.run import bundle

        job, recent, verdict = self._sensor.job, self._recent, decision.verdict
        trigger, host = EvidenceTrigger.RUN, os.uname().nodename
        taken = bundle.taken(job, verdict, recent.lines, recent.moments, trigger, host)
        # an announced fault is acted on at once: then only the stacks that were read for the verdict are kept
        is_urgent = verdict.is_announced and decision.act is not Act.SNAPSHOT
        stacks_s = 0.0 if is_urgent else RUN_STACKS_S
        folder = self._plan.snapshot_dir
        text = bundle.BundleThread(folder, taken, list(job.members.views), stacks_s).outcome()
        self._report_action(Decision(Act.SNAPSHOT, decision.reason, verdict), text)

    def _shut_down(self, decision: Decision, reason: Reason, text: str) -> None:
        # A job that has ended by itself keeps its own exit code, unless it should have continued.
        if reason is Reason.SHUTDOWN and self._has_ended_by_itself():
            return
        if self._kill(decision):
            self._outcome = outcome.shut_down(reason, text)

    def _has_ended_by_itself(self) -> bool:
        if not self._owns_job:
            return not self._target.pids()
        assert self._supervisor is not None
        self._supervisor.poll()
        return self._supervisor.job_code is not None

    def _kill(self, decision: Decision) -> bool:
        """End the job; if that fails, report it and end the run."""
        assert self._supervisor is not None
        self._announcer.hushed = True
        try:
            text = _end_job(self._supervisor, self._target)
        except ActionError as error:
            self._report_action(decision, str(error))
            self._outcome = outcome.shut_down(Reason.SHUTDOWN, str(error))
            return False
        self._report_action(decision, text)
        return True

    def _report_action(self, decision: Decision, text: str) -> None:
        for sink in self._sinks:
            sink.on_action(decision, text)

    def _start_again(self) -> bool:
        """Wait for the back-off, then start; False if the run ends instead: by the user, its time or a failed start."""
        assert self._supervisor is not None
        due_s = time.monotonic() + (self._pause_s or 0.0)
        self._pause_s = None
        while True:
            left_s = due_s - time.monotonic()
            if self._signal is not None:
                return False
            if self._end_s is not None and time.monotonic() >= self._end_s:
                self._outcome = self._time_over()
                return False
            if left_s <= 0:
                break
            time.sleep(min(left_s, 0.1))
        if self._log is not None:
            self._log.begin()
        try:
            pid = self._supervisor.start()
        except KcoverError as error:
            self._outcome = outcome.not_restarted(error)
            return False
        sensor, self._sensor = self._sensor, self._new_sensor()
        self._sensor.tracker = sensor.tracker  # incident numbers continue, and WORKING is reported
        self._sensor.job.remember(sensor.job.pace.memory)
        text = f"restarted the job (restart {self.restart_count}), pid {pid}"
        fields = {"job": self._plan.name, "pid": pid, "restart": self.restart_count, "text": text}
        self._announcer.on_start(fields)
        self._recent.on_start(fields)
        return True


def _in_foreground() -> bool:
    """True if a Ctrl-C at the terminal reaches both us and the job."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _end_job(supervisor: Supervisor, target: Target) -> str:
    """Stop all processes of the job, then kill them at once; returns a description of the result.

    The supervisor gets a tree as we have followed it: its root alone does not lead to it once the root has ended.

    Raises `ActionError` if processes remain that do not die, or the supervisor is lost.
    """
    begin_s = time.monotonic()
    if isinstance(target, ProcessTree):
        supervisor.follow(target.identities())
    left = supervisor.kill_and_wait()
    took_s = time.monotonic() - begin_s
    if left:
        pids = ", ".join(map(str, left))
        raise ActionError(f"pid {pids} did not die of SIGKILL in {took_s:.1f}s (state D?)")
    return f"stopped and killed the whole job in {took_s * 1000:.0f} ms"
