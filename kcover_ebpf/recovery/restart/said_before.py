"""Whether an incident says already what there is to say: each word costs a write, and a line of its story. Pure."""

from __future__ import annotations

import re

from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.tunables.recovery import FAULT_OVER_S

_LEFT = re.compile(r"ended in \d+ s")


def is_said_before(old: Status, new: Status, phase: Phase, reason: str) -> bool:
    """True where verdict, reason and time of the end are those of `old`; seconds that are left are others each time.

    Whether there is an end at all, the reason says: definitions that are older than this controller drop the time when
    it is written, and who then saw a change in each reading would write without end.
    """
    if old.phase is not phase or (old.failure, old.crashes) != (new.failure, new.crashes):
        return False
    if (old.kind, old.cause, old.culprit) != (new.kind, new.cause, new.culprit):
        return False
    before_s, now_s = _acts_at_s(old), _acts_at_s(new)
    if before_s is not None and now_s is not None and abs(before_s - now_s) >= FAULT_OVER_S:
        return False
    return _LEFT.sub("", old.message).endswith(_LEFT.sub("", reason))


def _acts_at_s(status: Status) -> float | None:
    """Unix seconds; None where it is never acted on."""
    return status.verdict.acts_at_s if status.verdict is not None else None
