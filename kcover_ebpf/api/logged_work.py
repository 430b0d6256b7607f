"""What a restart costs in steps, as the logs of the job show it: a part of an incident's status. Pure."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LoggedWork:
    """How far the job had come at the fault, and what was done again after it."""

    step: int | None = None
    """The last that was printed before the fault."""
    unsaved_steps: int | None = None
    """Steps since the last checkpoint that was said to be complete; None where none is known."""
    redone_steps: int | None = None
    """Steps that the start after the restart did again; None while it has printed none, or where it cannot be known."""
    step_s: float | None = None
    """Mean seconds of a step, by the times of the lines."""
    loss: float | None = None
    tokens: int | None = None
    """That the training had taken, as it counts them."""

    @property
    def lost_steps(self) -> int | None:
        """Those that a restart does again: as they were seen to be, else since the last checkpoint."""
        return self.unsaved_steps if self.redone_steps is None else self.redone_steps

    @property
    def lost_s(self) -> float | None:
        """Seconds of training that they had taken; None where either is not known."""
        if self.lost_steps is None or self.step_s is None:
            return None
        return self.lost_steps * self.step_s
