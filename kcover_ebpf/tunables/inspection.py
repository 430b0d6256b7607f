"""Tunables of the inspections of a node: thresholds and time-outs of its checks, with unit and reason.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

# --- Thresholds

LITTLE_MEMORY_SHARE = 0.05
"""Share of the memory below which the kernel reclaims pages that jobs need soon."""
NO_MEMORY_SHARE = 0.01
"""Share of the memory below which the next large allocation ends a process."""
SWAPPED_SHARE = 0.1
"""Share of the swap space in use from which on a job may wait for its own memory."""
LITTLE_SPACE_SHARE = 0.1
"""Share of the space of a file system: the kubelet's default, below which it evicts pods (nodefs.available)."""
FEW_INODES_SHARE = 0.05
"""Share of the inodes of a file system: the kubelet's default (nodefs.inodesFree)."""
CLOCK_FAR_S = 0.1
"""Seconds of offset from which on the order of events on two nodes is confused."""
CLOCK_UNSURE_S = 5.0
"""Seconds of the kernel's bound for the clock's error, which grows by 500 us a second from one correction to the next:
10,000 s without one; 16 s make it unsynchronised. A healthy daemon corrects every 2048 s at the latest by default
(systemd-timesyncd; chrony and ntpd 1024 s), which is 1 s; ntpd may ignore seven answers of eight, which is 4.1 s. A
server that is itself off by more is refused by all of them (chrony 3 s, ntpd 1.5 s)."""
PEER_SLOW_S = 0.5
"""Seconds from which on a peer is slow: a name or a connection in the same cluster takes milliseconds; a lost packet
costs a second."""
STORAGE_SLOW_S = 1.0
"""Seconds from which on storage is slow: such an answer or write delays every step that reads data."""
GPU_BUSY_BYTES = 1 << 30
"""Bytes in use above which a GPU has a job, even if NVML does not list its process (another PID namespace)."""
LEAST_PEERS = 2
"""Peers needed to judge: where the only peer is down, every node of the cluster would fail."""


# --- Time

PEER_PATIENCE_S = 5.0
"""Seconds to connect to a peer: two lost packets of a handshake (1 + 2 s) are forgiven."""
PEER_NAME_PATIENCE_S = 25.0
"""Seconds for the name of a peer: a resolver asks each of two servers twice for 5 s (resolv.conf(5)), so a slow answer
of the second still counts. With connection and echoes it is less than the deadline of the check."""
PEER_ECHO_S = 1.0
"""Seconds for an echo from a node of the same cluster, which takes less than a millisecond: ping's interval."""
PEER_ECHO_TRIES = 2
"""Echo requests sent to a peer, so that one lost packet is forgiven."""
STORAGE_PATIENCE_S = 5.0
"""Seconds for statfs, which a healthy server answers in milliseconds."""
STORAGE_WRITE_PATIENCE_S = 20.0
"""Seconds for 1 MiB written, synced and read: a sync also waits for what others wrote, such as a checkpoint. Chosen;
with the patience for statfs it is less than the deadline of the check."""
STUCK_THREAD_S = 5.0
"""Seconds in a call of storage after which a thread is stuck: a disk answers in milliseconds, and a live server within
a second."""
LINK_COUNTERS_S = 1.0
"""Seconds between two readings of an interface's error counters. Chosen: one error a second is many."""
RDMA_COUNTERS_S = 1.0
"""Seconds between two readings of an RDMA port's error counters. Chosen: one error a second is many there, too."""
PLUGIN_DEADLINE_S = 5.0
"""Seconds for a plug-in: node-problem-detector's default time-out."""
PLUGIN_LONGEST_S = 120.0
"""Seconds that a light plug-in may request at most: a scheduled round waits for it. DCGM's diagnosis takes a minute."""
PLUGIN_HEAVY_LONGEST_S = 600.0
"""Seconds that a plug-in which runs on demand may request at most: a person waits for it. Chosen."""
KERNEL_LINE_RECENT_S = 3600.0
"""Seconds for which a kernel line about a passing state, such as a soft lockup, is a warning: chosen, six rounds."""
CHECK_REAP_S = 1.0
"""Seconds that a killed process may take to end; one that needs longer is in state D."""


# --- GPUs, by NVML

POWER_LIMIT_SHARE = 0.99
"""Share of a GPU's default power limit: a lower enforced limit is reported. Chosen: a limit that was set is lower by
tens of watts, and rounding costs no job anything."""
BUSY_SHARE = 0.8
"""Share of NVML's sample (1/6 s to 1 s) with a kernel on the GPU from which on it must have raised its clock, which
takes milliseconds. Chosen."""
SM_CLOCK_SHARE = 0.5
"""Share of the highest clock that its settings allow: the slow-down by hardware divides the clock by two or more
(nvml.h, `nvmlClocksThrottleReasonHwSlowdown`). Voltage and temperature alone reduce a boost clock by less."""
