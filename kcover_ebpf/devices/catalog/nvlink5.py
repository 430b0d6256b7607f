"""What the driver prints with Xid 144 to 150: an NVLink 5 unit, its severity, link and registers. Pure.

NVIDIA, "Analyzing Xid Errors with the Xid Catalog", sheet "XID 144-150 Decode". The first register has the sub-code in
bits 20 to 25, before and since R575 alike; what changed there are the lowest bits, which name the unit, and the unit is
printed. The number behind `i` counts injected errors: a test, not a fault.
"""

from __future__ import annotations

import re
from enum import Enum

from kcover_ebpf.dataclass import dataclass

_FAULT = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{1,40}) {1,8}(?P<severity>Nonfatal|Fatal) {1,8}XC ?(?P<crossed>\d)"
    r"(?: {1,8}i ?(?P<injected>\d{1,3}))?(?: {1,8}Link (?P<link>-?\d{1,3}))?"
    r"(?: {1,8}[\[(]0x(?P<info>[0-9a-fA-F]{1,8}))?"
)
_SUB_CODE_BITS, _SUB_CODE_MASK = 20, 0x3F
_LINK_UNITS = frozenset({"NETIR", "NETIR_INT", "NETIR_LINK_EVT", "NETIR_LINK_DOWN"})


class Origin(Enum):
    """Where the cause of a link's end lies, as far as the sub-code says."""

    UNKNOWN = "the cause is not stated"
    SIGNAL = "the signal of the link: inspect its cables and connectors"
    PEER = "the other end of the link: inspect that device, and replace it if it happens again"
    SOFTWARE = "software or a user shut it down: no part is to be replaced"
    SOFTWARE_OR_SIGNAL = "software or a user, or the signal of the link: inspect both"
    HOST = "the host: inspect it"


_ORIGINS = {
    **dict.fromkeys((2, 4, 10, 42, 43), Origin.SIGNAL),
    **dict.fromkeys((21, 32, 33, 34, 35, 36, 37), Origin.PEER),
    **dict.fromkeys((15, 17, 22, 38), Origin.SOFTWARE),
    **dict.fromkeys((16, 18), Origin.SOFTWARE_OR_SIGNAL),
    40: Origin.HOST,
}
"""By sub-code of a link's end."""


@dataclass(frozen=True, slots=True)
class NvlinkFault:
    """One such message."""

    unit: str
    is_fatal: bool
    is_injected: bool
    """A test caused it."""
    link: int | None
    """None where it concerns none."""
    sub_code: int | None
    """None where the message ends before the registers."""

    @property
    def origin(self) -> Origin:
        if self.unit == "NETIR_BER_EVENT":
            return Origin.SIGNAL
        if self.unit not in _LINK_UNITS or self.sub_code is None:
            return Origin.UNKNOWN
        return _ORIGINS.get(self.sub_code, Origin.UNKNOWN)

    @property
    def text(self) -> str:
        """The same in words."""
        severity = "fatal" if self.is_fatal else "not fatal"
        link = f" on link {self.link}" if self.link is not None else ""
        code = f", sub-code {self.sub_code}" if self.sub_code is not None else ""
        if self.is_injected:
            return f"{self.unit} {severity}{link}{code}: injected by a test"
        return f"{self.unit} {severity}{link}{code}: {self.origin.value}"


def fault(text: str) -> NvlinkFault | None:
    """What a message of Xid 144 to 150 says; None for one of another form."""
    match = _FAULT.search(text)
    if match is None:
        return None
    link = int(match["link"]) if match["link"] is not None else None
    info = int(match["info"], 16) if match["info"] is not None else None
    return NvlinkFault(
        unit=match["unit"],
        is_fatal=match["severity"] == "Fatal",
        is_injected=match["injected"] is not None and int(match["injected"]) > 0,
        link=link if link is not None and link >= 0 else None,
        sub_code=None if info is None else info >> _SUB_CODE_BITS & _SUB_CODE_MASK,
    )
