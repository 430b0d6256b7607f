"""The length of the kernel's tick, derived from two clocks because no interface reports it. Pure."""

from __future__ import annotations

from kcover_ebpf.ids import NS

_RATES_HZ = (100, 250, 300, 1000)
"""Possible values of CONFIG_HZ on x86 and arm64 (kernel/Kconfig.hz)."""

_START_S = 300
"""The jiffies counter starts this many seconds before it wraps at 32 bits (include/linux/jiffies.h)."""

_UNDECIDED_S = 15
"""Within this many seconds of the wrap, all rates predict about the same count."""


def tick_ns(jiffies: int, monotonic_ns: int) -> int | None:
    """Nanoseconds per tick, from the kernel's 64-bit tick count and CLOCK_MONOTONIC at one moment.

    None in the seconds around the wrap, 5 minutes after boot, when the count allows no conclusion.
    """
    since_wrap_s = monotonic_ns / NS - _START_S
    if abs(since_wrap_s) < _UNDECIDED_S:
        return None
    rate_hz = min(_RATES_HZ, key=lambda rate: abs((jiffies - 2**32) / since_wrap_s - rate))
    return NS // rate_hz


def tick_ns_between(first: tuple[int, int], second: tuple[int, int]) -> int:
    """Nanoseconds per tick, from two pairs (jiffies, monotonic nanoseconds) that are 100 ms or more apart."""
    measured_hz = (second[0] - first[0]) * NS / (second[1] - first[1])
    rate_hz = min(_RATES_HZ, key=lambda rate: abs(measured_hz - rate))
    return NS // rate_hz
