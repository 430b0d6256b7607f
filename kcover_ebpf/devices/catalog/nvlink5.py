"""Decodes the driver's messages for Xid 144 to 150: NVLink 5 unit, severity, link and registers.

Pure. Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog", sheet "XID 144-150 Decode". Bits 20 to 25 of the
first register hold the sub-code, both before and since R575. R575 changed only the lowest bits, which name the
unit, and the message names the unit anyway. The number after `i` counts injected errors; a non-zero count means a
test, not a fault.
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
    """The side of a failed link where the cause lies, as far as the sub-code shows it."""

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
"""The side by the sub-code of a link failure."""


@dataclass(frozen=True, slots=True)
class NvlinkFault:
    """One decoded message of Xid 144 to 150."""

    unit: str
    is_fatal: bool
    is_injected: bool
    """True if a test injected the error, so that it is no fault."""
    link: int | None
    """NVLink number on this GPU; None if the message concerns no single link."""
    sub_code: int | None
    """Sub-code of the error; None if the message ends before the registers."""

    @property
    def origin(self) -> Origin:
        if self.unit == "NETIR_BER_EVENT":
            return Origin.SIGNAL
        if self.unit not in _LINK_UNITS or self.sub_code is None:
            return Origin.UNKNOWN
        return _ORIGINS.get(self.sub_code, Origin.UNKNOWN)

    @property
    def text(self) -> str:
        """The decoded message as one sentence for evidence."""
        severity = "fatal" if self.is_fatal else "not fatal"
        link = f" on link {self.link}" if self.link is not None else ""
        code = f", sub-code {self.sub_code}" if self.sub_code is not None else ""
        if self.is_injected:
            return f"{self.unit} {severity}{link}{code}: injected by a test"
        return f"{self.unit} {severity}{link}{code}: {self.origin.value}"


def fault(text: str) -> NvlinkFault | None:
    """The decoded message of an Xid 144 to 150; None if it has another form."""
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
