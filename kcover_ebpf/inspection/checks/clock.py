"""Checks that the clock is synchronised, because logs, tokens and time-outs of several nodes depend on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, passed, unknown, warned
from kcover_ebpf.tunables.inspection import CLOCK_FAR_S, CLOCK_UNSURE_S

# include/uapi/linux/timex.h
_STA_UNSYNC = 0x40
_STA_NANO = 0x2000
_START = "run chrony or systemd-timesyncd"
_SEE = "see that the time daemon runs and reaches its servers (chronyc tracking, timedatectl)"
_GROWTH = 500e-6
"""Growth per second of the kernel's error bound without a correction (kernel/time/ntp.c, MAXFREQ)."""


class Timex(ctypes.Structure):
    """`struct timex`: the fields that are read, and padding up to its full size."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


def find(_: InspectionOptions) -> Iterator[CheckFinding]:
    """One finding about the clock of this node."""
    timex = Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        yield unknown(f"adjtimex: {os.strerror(ctypes.get_errno())}", "allow adjtimex (seccomp)")
        return
    yield judged(timex)


def judged(timex: Timex) -> CheckFinding:
    """The finding for a state of the kernel's clock."""
    offset_s = timex.offset / (1e9 if timex.status & _STA_NANO else 1e6)
    error_s = timex.maxerror / 1e6
    if timex.status & _STA_UNSYNC:
        return warned("the clock is not synchronised", _START)
    text = f"offset {offset_s * 1000:.3f} ms, error at most {error_s * 1000:.1f} ms"
    if abs(offset_s) > CLOCK_FAR_S:
        return warned(text, f"check the time servers; {_START}")
    # chrony leaves the kernel's offset at zero; the clock counts as synchronised for nine hours
    # after chrony ends
    if error_s > CLOCK_UNSURE_S:
        silent_h = error_s / _GROWTH / 3600
        text = f"not corrected for about {silent_h:.1f} h: error at most {error_s * 1000:.1f} ms"
        return warned(text, _SEE)
    return passed(f"synchronised, {text}")


CHECK = Check(
    "clock",
    Cost.LIGHT,
    5.0,
    "synchronised, at most 0.1 s off (by the kernel's offset, which chrony leaves at zero), and by the kernel's bound "
    "for the error at most 5 s: else it was not corrected for some three hours",
    "adjtimex(2)",
    find,
)
