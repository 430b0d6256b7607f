"""Tunables of inspections: from which reading on a check warns, with unit and reason.

Set by no option. "Chosen" means that nothing was measured. What a vendor or an interface defines is beside its check.
"""

from __future__ import annotations

# --- GPUs, by NVML

POWER_LIMIT_SHARE = 0.99
"""Of a GPU's default power limit: an enforced limit below it is reported. Chosen: a limit that is set is lower by
tens of watts, and what a limit loses by rounding costs no job anything."""
BUSY_SHARE = 0.8
"""Of NVML's sample (1/6 s to 1 s) with a kernel on the GPU: one that is busy for so long has raised its clock, which
takes milliseconds. Chosen."""
SM_CLOCK_SHARE = 0.5
"""Of the highest clock that its settings allow: the slow-down by hardware divides the clock by two or more (nvml.h,
`nvmlClocksThrottleReasonHwSlowdown`). What voltage and temperature alone take off a boost clock is less."""
