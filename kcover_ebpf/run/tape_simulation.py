"""A tape under another policy: judged twice as a run would, with the recorded policy and with the given one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.errors import UsageError
from kcover_ebpf.output import formatting
from kcover_ebpf.recovery.simulation import Difference, difference_of
from kcover_ebpf.run.replay import Replay
from kcover_ebpf.run.sinks import Announcer, Sink
from kcover_ebpf.settings import Act, Policy, Settings
from kcover_ebpf.tapes.reader import TapeReader

_ENDS = (Act.SHUTDOWN, Act.RESTART)


@dataclass(frozen=True, slots=True)
class SimulatedTape:
    """One recorded job under both policies; seconds are since the recording began."""

    tape: str
    lasted_s: float
    did: str
    """How the recorded run ended; empty if the tape does not contain it."""
    ended_s: float | None
    """When an armed job is ended by the recorded policy; None: it is not."""
    ended_for: str
    would_end_s: float | None
    """When it is ended by the other policy; None: it is not."""
    would_end_for: str
    difference: Difference


def simulated_tape(path: Path, policy: Policy) -> SimulatedTape:
    """Simulate the recorded job as if it were armed; raises `UsageError` if it is not a tape."""
    before, now = _play(path, None), _play(path, policy)
    return SimulatedTape(
        tape=path.name,
        lasted_s=before.last_s - before.first_s,
        did=before.did,
        ended_s=before.ended_s,
        ended_for=before.ended_for,
        would_end_s=now.ended_s,
        would_end_for=now.ended_for,
        difference=difference_of(before.ended_s, now.ended_s),
    )


class _Watcher(Sink):
    """Notes when the job is first ended."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.first_s = self.last_s = 0.0
        self.ended_s: float | None = None
        self.ended_for = self.did = ""

    def on_start(self, fields: dict[str, Any]) -> None:  # noqa: ARG002
        """The first start is when the recording began."""
        self.first_s = self.first_s or self._replay.now_s()
        self.last_s = self._replay.now_s()

    def on_action(self, decision: Decision, text: str) -> None:  # noqa: ARG002
        """Take what would be done to the job."""
        if decision.act in _ENDS and self.ended_s is None:
            self.ended_s = self._replay.now_s() - self.first_s
            self.ended_for = formatting.headline(decision.verdict)

    def on_end(self, fields: dict[str, Any]) -> None:
        """Take how the recorded run ended."""
        self.did, self.last_s = fields["text"], self._replay.now_s()


def _play(path: Path, policy: Policy | None) -> _Watcher:
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the tape {path}: {reason}") from error
    with stream:
        tape = TapeReader(stream, str(path))
        settings = Settings(act=Act.RESTART, policy=policy or tape.header.policy)
        replay = Replay(tape, settings)
        watcher = _Watcher(replay)
        replay.play(Announcer([watcher], wants_waits=False))
    watcher.last_s = max(watcher.last_s, replay.now_s())
    return watcher
