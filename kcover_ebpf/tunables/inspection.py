"""Tunables of the inspections of a node: thresholds and time-outs of its checks, with unit and reason.

The bandwidth check has its own: it is copied alone into the pods of a job.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

# --- Thresholds

LITTLE_MEMORY_SHARE = 0.05
"""Of the memory: below it the kernel reclaims pages that jobs need soon."""
NO_MEMORY_SHARE = 0.01
"""Of the memory: below it the next large allocation ends a process."""
SWAPPED_SHARE = 0.1
"""Of the swap space in use from which on a job may wait for its own memory."""
LITTLE_SPACE_SHARE = 0.1
"""Of the room: as the kubelet's default, below which it evicts pods (nodefs.available)."""
FEW_INODES_SHARE = 0.05
"""Of the inodes: the kubelet's default (nodefs.inodesFree)."""
CLOCK_FAR_S = 0.1
"""An offset from which on the order of events on two nodes is confused."""
CLOCK_UNSURE_S = 5.0
"""Of the kernel's bound for the error, which grows by 500 us a second from one correction to the next: 10,000 s without
one, and 16 s make it unsynchronised. A daemon that is well corrects every 2048 s at the latest by default
(systemd-timesyncd; chrony and ntpd 1024 s), which is 1 s; ntpd may pass over seven answers of eight, which is 4.1 s. A
server that is off by more itself is refused by all of them (chrony 3 s, ntpd 1.5 s)."""
PEER_SLOW_S = 0.5
"""A name or a connection in the same cluster takes milliseconds; a lost packet costs a second."""
STORAGE_SLOW_S = 1.0
"""An answer or a write that takes longer delays every step that reads data."""
GPU_BUSY_BYTES = 1 << 30
"""More than this in use is a job's, even if NVML does not list its process (another PID namespace)."""
LEAST_PEERS = 2
"""Where the only peer is down, every node of the cluster would fail."""


# --- Time

PEER_PATIENCE_S = 5.0
"""Two lost packets of a handshake (1 + 2 s) are forgiven."""
PEER_NAME_PATIENCE_S = 25.0
"""For the name of a peer: a resolver asks each of two servers twice for 5 s (resolv.conf(5)), so the second of them is
still heard, if slowly. With connection and echoes it is less than the deadline of the check."""
PEER_ECHO_S = 1.0
"""For an echo from a node of the same cluster, which takes less than a millisecond; as ping's interval."""
PEER_ECHO_TRIES = 2
"""One lost packet is forgiven."""
STORAGE_PATIENCE_S = 5.0
"""For statfs, which a healthy server answers in milliseconds."""
STORAGE_WRITE_PATIENCE_S = 20.0
"""For 1 MiB written, synced and read: a sync also waits for what others wrote, as a checkpoint. Chosen; with the
patience for statfs it is less than the deadline of the check."""
STUCK_THREAD_S = 5.0
"""A disk answers in milliseconds, and a server that is alive within a second."""
LINK_COUNTERS_S = 1.0
"""Between two readings of an interface's error counters. Chosen: one error a second is many."""
RDMA_COUNTERS_S = 1.0
"""The same of an RDMA port. Chosen: one error a second is many there, too."""
PLUGIN_DEADLINE_S = 5.0
"""As node-problem-detector's default time-out of a plugin."""
PLUGIN_LONGEST_S = 120.0
"""That a light one may ask for: a scheduled round waits for it. DCGM's diagnosis takes a minute."""
PLUGIN_HEAVY_LONGEST_S = 600.0
"""That one may ask for which runs on demand: a person waits for it. Chosen."""
KERNEL_LINE_RECENT_S = 3600.0
"""A line of the kernel about what may pass, such as a soft lockup, is a warning for so long: chosen, six rounds."""
CHECK_REAP_S = 1.0
"""How long a killed process may take to end; one that needs longer is in D."""


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
