"""Why something that ran in a rank during its wait did not count as work: said to people, and decides nothing."""

from __future__ import annotations

from enum import Enum


class Discounted(Enum):
    """One kind of activity that explains no wait; the value is what reports carry, `text` is for people."""

    LEAD_SPINS = "lead spins"
    SIDES_SPIN = "side threads spin"
    SIDES_NAP = "side threads nap"
    SIDES_WAKE = "side threads wake"
    CHILD_WAKES = "child wakes"
    CHILD_USUAL = "child as usual"
    CHILD_BRIEF = "brief child"
    CHILD_SPINS = "child spins"
    TELEMETRY = "telemetry"
    UNKNOWN = "unknown"
    """A kind that a newer agent reports and this version does not know."""

    @property
    def text(self) -> str:
        """The sentence about some ranks, whose names it has as `{who}`."""
        return _TEXTS[self]


_TEXTS = {
    Discounted.LEAD_SPINS: "the first thread of {who} spins, as this library waits",
    Discounted.SIDES_SPIN: "side threads of {who} spin, as their library waits",
    Discounted.SIDES_NAP: "side threads of {who} poll every few milliseconds, as before this wait",
    Discounted.SIDES_WAKE: "side threads of {who} wake for moments, as while the job trained",
    Discounted.CHILD_WAKES: "a child of {who} wakes for moments, as while the job trained",
    Discounted.CHILD_USUAL: "a child of {who} does not clearly more than while the job trained",
    Discounted.CHILD_BRIEF: "a child of {who}: those of this name ended within seconds while the job trained",
    Discounted.CHILD_SPINS: "a child of {who} is in a tight loop",
    Discounted.TELEMETRY: "messages of {who} to an address outside, as while the job trained",
    Discounted.UNKNOWN: "something of {who}, for a reason that a newer version knows",
}
