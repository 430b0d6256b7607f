"""The length of the kernel's tick, which no interface reports, from two clocks. Pure."""

from __future__ import annotations

from kcover_ebpf.ids import NS

_RATES_HZ = (100, 250, 300, 1000)
"""The values of CONFIG_HZ on x86 and arm64 (kernel/Kconfig.hz)."""

_START_S = 300
"""The count of jiffies starts so long before its wrap at 32 bits (include/linux/jiffies.h)."""

_UNDECIDED_S = 15
"""So near to the wrap all rates predict about the same count."""


def tick_ns(jiffies: int, monotonic_ns: int) -> int | None:
    """Nanoseconds of one tick, from the kernel's 64-bit count and CLOCK_MONOTONIC at one moment.

    None in the seconds round the wrap, 5 minutes after boot, when the count says nothing.
    """
    since_wrap_s = monotonic_ns / NS - _START_S
    if abs(since_wrap_s) < _UNDECIDED_S:
        return None
    rate_hz = min(_RATES_HZ, key=lambda rate: abs((jiffies - 2**32) / since_wrap_s - rate))
    return NS // rate_hz


def tick_ns_between(first: tuple[int, int], second: tuple[int, int]) -> int:
    """The same from two pairs of (jiffies, monotonic nanoseconds), some 100 ms or more apart."""
    measured_hz = (second[0] - first[0]) * NS / (second[1] - first[1])
    rate_hz = min(_RATES_HZ, key=lambda rate: abs(measured_hz - rate))
    return NS // rate_hz
