"""Tunables of the device families: how often they read, how long they wait, and what a GPU's readings mean.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Who uses a device

DEVICES_FIRST_WAIT_S = 1.0
"""Reading the devices takes milliseconds; a driver that does not answer must not keep us from watching."""
HOLDER_KEPT_NS = 10 * NS
"""So long a process that let go of a GPU, or died, counts as its holder: the error that killed it is often reported
later."""
STUCK_CALL_NS = 4 * NS
"""A call is reported when every inspection for so long found it: driver calls pass through state D all the time."""
GPU_HOLDERS_S = 30.0
"""Open files are read so often: hundreds of links of /proc a rank, and ranks keep their GPUs."""
PORT_HOLDERS_S = 30.0
"""Who has a port open is read so often: hundreds of links of /proc a rank, and ranks keep their ports."""


# --- Errors that are reported in several ways

XID_HOLD_NS = 500_000_000
"""Time for a better rung to see what a lower one saw."""
XID_UNCONFIRMED_NS = 2 * XID_HOLD_NS
"""Longer for what only the console saw: its confirmation is read a moment after it."""
XID_FORGET_NS = 5 * NS
"""After so long without a report of a number, its count starts again on all rungs."""
AER_SETTLE_NS = 3 * NS
"""Longer than the kernel half stays silent about a device after it reported an error."""
LOG_SELF_TEST_NS = 500_000_000
"""After the first pass. A line is reported within a millisecond of its printing, and read in the next pass."""
LOG_SKIPPED_PASSES = 8
"""Passes of whose lines in the log none concerned us before they are left out: what came since is read with the next
that does."""


# --- Ports

RDMA_PERIOD_NS = 5 * NS
"""The kernel reports link changes at once; polling is for counters, and for where no probe can be had."""
NETLINK_ANSWER_S = 1.0
"""The kernel answers a question about its links in microseconds."""
RDMA_TRAFFIC_S = 1.0
"""Between two readings of the octets of a port: as a pass in calm times (`Settings.period_s`)."""


# --- Readings of GPUs

GPU_MODEL_BYTES = 1 << 30
"""Less is the context of a program (some 500 MB), and no model."""
GPU_BUSY_SHARE = 0.9
"""Of the time with a kernel from which on low power means waiting. Chosen."""
GPU_LOW_POWER_SHARE = 0.4
"""Of the power limit: kernels that only wait for their peers draw less, training draws more. Not measured here."""
GPU_CHANGED_PERCENT = 20
"""Of utilisation between two readings, from which on they differ. Chosen."""
GPU_CHANGED_POWER_SHARE = 0.15
"""Of the power limit: a GPU in one and the same kernel stays within a few percent."""
NVML_EVENT_MS = 500
"""One wait for an event, after which it is seen whether the family was closed. Chosen."""
NVML_USERS_S = 10.0
"""Between two readings of which processes use a GPU. Chosen."""
NVML_STUCK_S = 5.0
"""Calls take microseconds to milliseconds, a GPU that wakes up up to three seconds."""
NVML_SLOW_READINGS_S = 10.0
"""Between two readings of what changes seldom or costs the driver more: ECC, processes, limits."""
NVML_AGAIN_S = 30.0
"""Between two attempts to reach a GPU that was not there."""
DCGM_TIMEOUT_S = 5.0
"""An exporter on the same node answers in milliseconds."""
DCGM_PERIOD_S = 10.0
"""Between two readings of an exporter, whose values change every 30 s by default."""
TELEMETRY_FIRST_S = 30.0
"""NVML's initialisation takes seconds where the driver does not keep its state (no persistence mode)."""
TELEMETRY_SILENT_PERIODS = 5
"""A helper that prints nothing for so many periods,"""
TELEMETRY_SILENT_S = 10.0
"""and for so long, hangs."""
TELEMETRY_AGAIN_S = 30.0
"""Before another helper, where one ended or there is no driver."""
TELEMETRY_REAP_S = 1.0
"""A helper that was killed, and its last words, are waited for so long: it may be in D."""
TELEMETRY_NICENESS = 5
"""Readings share the node with training."""
