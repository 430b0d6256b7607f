"""Judges a recorded job again, in the time of the tape; actions are reported but not carried out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS
from kcover_ebpf.output.log_lines import blame
from kcover_ebpf.run.sinks import Announcer
from kcover_ebpf.settings import Act, Settings
from kcover_ebpf.tapes.entries import Ask, End, Entry, Hold, Judge, Look, Start
from kcover_ebpf.tapes.reader import TapeReader
from kcover_ebpf.watching.judging import Judging

HOST = "host"
"""Host name in the output: a tape does not contain it."""
_NOT_DONE = "replayed: nothing was done"


class Replay:
    """One tape that is being judged."""

    def __init__(self, tape: TapeReader, settings: Settings | None = None) -> None:
        """`settings`: replace those of the recorded run."""
        self._tape, self._header = tape, tape.header
        self._settings = settings or Settings(act=tape.header.act, policy=tape.header.policy)
        self._table = SyscallTable(tape.header.machine)
        self._announcer = Announcer((), wants_waits=False)
        self._offset_s = 0.0
        self._is_held = False
        """True if the action of the next judgement was postponed in the recording."""
        self._reported_s = 0.0
        """Time of the reported event; starts and ends have their own."""
        self._judging = self._new_judging(Tracker(tape.header.job, HOST))

    @property
    def job(self) -> Job:
        """The job as of the last entry that was played."""
        return self._judging.job

    def now_s(self) -> float:
        """Current time of the tape (unix seconds)."""
        return self._reported_s

    def play(self, announcer: Announcer) -> None:
        """Report what a run would; raises `UsageError` if the tape cannot be read or judged."""
        self._announcer = announcer
        self._judging = self._new_judging(self._judging.tracker)
        for entry, is_held in _with_holds(self._tape):
            self._is_held = is_held
            try:
                self._play(entry)
            except KcoverError:
                raise
            except Exception as error:
                # facts that the kernel does not announce may be invalid
                why = f"it cannot be judged ({blame(error)})"
                raise self._tape.refusal(why) from error

    def _new_judging(self, tracker: Tracker) -> Judging:
        sinks = (self._announcer,)
        return Judging(
            tracker,
            self._table,
            self._settings,
            sinks,
            self._carry_out,
            is_ready=lambda: not self._is_held,
        )

    def _play(self, entry: Entry) -> None:
        match entry:
            case Start():
                self._start(entry)
            case Look():
                self._judging.wants()
            case Ask():
                self._judging.asks_collectives()
            case Judge():
                self._offset_s = entry.unix_offset_s
                self._set_clock()
                self._judging.judge(self._offset_s)
            case End():
                self._end(entry)
            case Hold():
                pass
            case _:
                self._reported_s = entry.boottime_ns / NS + self._offset_s
                self._judging.take(entry)

    def _set_clock(self) -> None:
        self._reported_s = self._judging.job.now_ns / NS + self._offset_s

    def _start(self, start: Start) -> None:
        # incidents continue counting, WORKING is reported, and the memory stays, as in a run that restarts its job
        memory, self._judging = self.job.pace.memory, self._new_judging(self._judging.tracker)
        self.job.remember(memory)
        self._reported_s, self._offset_s = start.time, start.unix_offset_s
        header = self._header
        fields: dict[str, Any] = {
            "job": header.job,
            "version": header.version,
            "kernel": None,
            "host": HOST,
            "target": "tape",
            "argv": [],
            "pid": start.pid,
            "restart": start.restart,
            "cgroup": None,
            "act": self._settings.act,
            "world_size": start.world_size,
            "metrics_port": None,
            "unobserved": list(start.unobserved),
            "text": f"replaying {header.job}, recorded by {header.version}",
        }
        self._announcer.on_start(fields)

    def _end(self, end: End) -> None:
        self._reported_s = end.time
        self._announcer.on_end(
            {
                "job": self._header.job,
                "reason": end.reason,
                "exit_code": end.exit_code,
                "job_code": end.job_code,
                "restart_count": end.restart_count,
                "duration_s": end.duration_s,
                "text": f"the recorded run ended: {end.reason}, exit code {end.exit_code}",
            }
        )

    def _carry_out(self, decision: Decision) -> None:
        if self._announcer.hushed:
            return
        snapshot = Decision(Act.SNAPSHOT, decision.reason, decision.verdict)
        self._announcer.on_action(snapshot, _NOT_DONE)
        if decision.act in (Act.SHUTDOWN, Act.RESTART):
            # from here on the recorded job was being ended
            self._announcer.hushed = True
            self._announcer.on_action(decision, _NOT_DONE)


def _with_holds(tape: TapeReader) -> Iterator[tuple[Entry, bool]]:
    """The entries, each judgement with whether its action was postponed; passes on errors of the tape."""
    entries, waiting = iter(tape), None
    while True:
        broken, entry = None, None
        try:
            entry = next(entries, None)
        except KcoverError as error:
            # the entries before it are judged anyway
            broken = error
        if waiting is not None:
            yield waiting, isinstance(entry, Hold)
            waiting = None
        if broken is not None:
            raise broken
        if entry is None:
            return
        if isinstance(entry, Judge):
            waiting = entry
        else:
            yield entry, False
