"""The length of a tick, from clocks as kernels of each rate show them."""

import pytest

from kcover_ebpf.kernel.clock import tick_ns, tick_ns_between

RATES = (100, 250, 300, 1000)


def jiffies(rate_hz: int, uptime_s: float) -> int:
    """The kernel's 64-bit count: it starts 300 s before 2**32 ticks (include/linux/jiffies.h)."""
    return 2**32 - 300 * rate_hz + int(uptime_s * rate_hz)


@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize("uptime_s", [1.5, 60, 284, 316, 3600, 86400 * 400])
def test_tick_ns__of_one_reading(rate_hz: int, uptime_s: float) -> None:
    found = tick_ns(jiffies(rate_hz, uptime_s), int(uptime_s * 1e9))
    assert found == 1_000_000_000 // rate_hz


@pytest.mark.parametrize("rate_hz", RATES)
def test_tick_ns__near_the_wrap_one_reading_says_nothing(rate_hz: int) -> None:
    for uptime_s in (286, 300, 314):
        assert tick_ns(jiffies(rate_hz, uptime_s), uptime_s * 10**9) is None


@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize("uptime_s", [299.95, 300.02])
def test_tick_ns_between__two_readings(rate_hz: int, uptime_s: float) -> None:
    readings = [
        (jiffies(rate_hz, moment_s), int(moment_s * 1e9)) for moment_s in (uptime_s, uptime_s + 0.1)
    ]
    assert tick_ns_between(readings[0], readings[1]) == 1_000_000_000 // rate_hz
