"""Tunables of the device families: how often they read, how long they wait, and what a GPU's readings mean.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

from kcover_ebpf.ids import NS

# --- Who uses a device

DEVICES_FIRST_WAIT_S = 1.0
"""Seconds to wait for the first reading of devices, which takes milliseconds: a driver that does not answer must not
delay the watch."""
HOLDER_KEPT_NS = 10 * NS
"""Nanoseconds for which a process that closed a GPU, or died, still counts as its user: the error that killed it is
often reported later."""
STUCK_CALL_NS = 4 * NS
"""Nanoseconds for which every reading must find a process in one call: driver calls pass through state D all the
time."""
GPU_HOLDERS_S = 30.0
"""Seconds between two readings of which processes have a GPU open: hundreds of links in /proc for each rank, and ranks
keep their GPUs."""
PORT_HOLDERS_S = 30.0
"""Seconds between two readings of which processes have a port open: hundreds of links in /proc for each rank, and ranks
keep their ports."""


# --- Errors that are reported in several ways

XID_HOLD_NS = 500_000_000
"""Nanoseconds to wait for a better source to report what a less precise one reported."""
XID_UNCONFIRMED_NS = 2 * XID_HOLD_NS
"""Nanoseconds to wait if only the console showed it: its confirmation is read a moment later."""
XID_FORGET_NS = 5 * NS
"""Nanoseconds without a report of an Xid number after which its count restarts for all sources."""
AER_SETTLE_NS = 3 * NS
"""Nanoseconds: longer than the BPF program stays silent about a device after it reported an error."""
LOG_SELF_TEST_NS = 500_000_000
"""Nanoseconds after the first pass. A line is reported within a millisecond of its printing and read in the next
pass."""
LOG_SKIPPED_PASSES = 8
"""Passes without a relevant kernel log line after which the log is left unread; what came since is read with the next
relevant line."""


# --- Ports

RDMA_PERIOD_NS = 5 * NS
"""Nanoseconds between two readings of counters, or of states without a probe: the kernel reports link changes at
once."""
NETLINK_ANSWER_S = 1.0
"""Seconds to wait for a netlink answer about links: the kernel takes microseconds."""
RDMA_TRAFFIC_S = 1.0
"""Seconds between two readings of a port's octets: as a pass in calm times (`Settings.period_s`)."""
RDMA_ERRORS_S = 5.0
"""Seconds between two readings of a port's error counters: there are some fifteen of them, and each read may be a
command to the firmware."""


# --- Readings of GPUs

GPU_MODEL_BYTES = 1 << 30
"""Bytes of GPU memory below which a process has only a context (some 500 MB) and no model."""
GPU_BUSY_SHARE = 0.9
"""Share of time with a kernel on the GPU from which on low power means waiting. Chosen."""
GPU_LOW_POWER_SHARE = 0.4
"""Share of the power limit: kernels that only wait for their peers draw less, training draws more. Not measured
here."""
GPU_CHANGED_PERCENT = 20
"""Percent of utilisation by which two readings must differ to count as changed. Chosen."""
GPU_CHANGED_POWER_SHARE = 0.15
"""Share of the power limit by which two readings must differ: a GPU in one and the same kernel stays within a few
percent."""
NVML_EVENT_MS = 500
"""Milliseconds of one wait for an NVML event; then it is checked whether the family was closed. Chosen."""
NVML_USERS_S = 10.0
"""Seconds between two readings of which processes use a GPU. Chosen."""
NVML_STUCK_S = 5.0
"""Seconds after which an NVML call is stuck: calls take microseconds to milliseconds, a GPU that wakes up three
seconds."""
NVML_SLOW_READINGS_S = 10.0
"""Seconds between two readings of what changes rarely or costs the driver more: ECC, processes, limits."""
NVML_AGAIN_S = 30.0
"""Seconds between two attempts to reach a missing GPU."""
DCGM_TIMEOUT_S = 5.0
"""Seconds to wait for a DCGM exporter: one on the same node answers in milliseconds."""
DCGM_PERIOD_S = 10.0
"""Seconds between two readings of an exporter, whose values change every 30 s by default."""
TELEMETRY_FIRST_S = 30.0
"""Seconds for the first reading: NVML's initialisation takes seconds where the driver does not keep its state (no
persistence mode)."""
TELEMETRY_SILENT_PERIODS = 5
"""Periods without output after which a helper may hang; `TELEMETRY_SILENT_S` must have passed as well."""
TELEMETRY_SILENT_S = 10.0
"""Seconds without output after which a helper hangs, if they are also `TELEMETRY_SILENT_PERIODS`."""
TELEMETRY_AGAIN_S = 30.0
"""Seconds before another helper is started, where one ended or there is no driver."""
TELEMETRY_REAP_S = 1.0
"""Seconds to wait for the end of a killed helper and its last output: it may be in state D."""
TELEMETRY_NICENESS = 5
"""Readings share the node with training."""
