"""A recorded job as the archive of its incident: what a run would have saved at the last fault that it reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kcover_ebpf.api.incident import Moment, Phase
from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.archive.node_part import EvidenceTrigger
from kcover_ebpf.errors import UsageError
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.run import bundle
from kcover_ebpf.run.bundle import Taken
from kcover_ebpf.run.replay import HOST, Replay
from kcover_ebpf.run.sinks import Announcer, Recent
from kcover_ebpf.tapes.reader import TapeReader

_MOST_MOMENTS = 64


def of_tape(path: Path) -> Archive:
    """Judge the tape and save what was known at its last fault; raises `UsageError` if it is not a tape."""
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}") from error
    with stream:
        played = Replay(TapeReader(stream, str(path)))
        keeper = _Keeper(played)
        played.play(Announcer([keeper], wants_waits=False))
    if keeper.taken is None:
        raise UsageError(f"{path} contains no verdict: the job was not judged in it")
    return _with_timeline(keeper.taken.archive, keeper.timeline)


class _Keeper(Recent):
    """Saves what is known at each reported verdict; a later fault replaces an earlier one."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay.now_s)
        self._replay = replay
        self.taken: Taken | None = None
        self.timeline: list[Moment] = []
        """All moments of the recording; `moments` are the last ones."""

    def on_verdict(self, verdict: Verdict) -> None:
        """Copy the sensor's knowledge, unless the verdict only says that a fault is over."""
        super().on_verdict(verdict)
        if verdict.opens_incident or self.taken is None or not self.taken.verdict.opens_incident:
            job = self._replay.job
            self.taken = bundle.taken(
                job, verdict, self.lines, self.moments, EvidenceTrigger.TAPE, HOST
            )

    def _note(self, phase: str, time_s: float, text: str) -> None:
        super()._note(phase, time_s, text)
        self.timeline = [*self.timeline, self.moments[-1]][-_MOST_MOMENTS:]


def _with_timeline(archive: Archive, moments: list[Moment]) -> Archive:
    incident = archive.incident
    if incident is None or incident.status is None:
        return archive
    status = replace(incident.status, phase=Phase.OBSERVED, timeline=tuple(moments))
    return replace(archive, incident=replace(incident, status=status))
