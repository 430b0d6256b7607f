"""The kernel half's device families, and what nobody sees without each of their probes."""

from __future__ import annotations

from kcover_ebpf.kernel.probes import Family, Probe

GPU = Family(
    "gpu",
    (
        Probe("on_xid", "Xids at once and with certainty (log lines are read instead)"),
        Probe("on_open", "who opens a GPU (open files are read instead)"),
        Probe("on_close", "who lets go of a GPU (open files are read instead)"),
        Probe("on_register", "which process computes on a GPU"),
        Probe("on_unregister", "when a process ends to compute on a GPU"),
    ),
)
"""Attached while the driver is loaded; kprobes, so that it can be unloaded meanwhile."""

GPU_PINNED = Family("gpu", (Probe("on_xid_tracepoint", "the driver's own words"), *GPU.probes))
"""With the driver's own tracepoint as well, which keeps the driver from being unloaded."""

LOG = Family(
    "log",
    (
        Probe("on_console", "drivers' lines as they are printed (the log is polled instead)"),
        Probe("on_module_load", "a driver that comes (probes are attached at the next poll)"),
        Probe("on_module_free", "a driver that goes"),
    ),
)
PCIE = Family("pcie", (Probe("on_aer", "PCI Express errors"),))
MEMORY = Family(
    "memory",
    (
        Probe("on_memory_controller", "memory errors that the memory controller reports"),
        Probe("on_page", "pages with memory errors"),
        Probe("on_machine_check", "machine checks"),
    ),
)
BLOCK = Family("block", (Probe("on_block_error", "requests that disks fail"),))
NIC = Family(
    "nic",
    (
        Probe("on_rdma", "RDMA ports that go down and devices that fail (their state is polled)"),
        Probe("on_health", "faults that network drivers report by devlink"),
    ),
)
"""The first probe is attached while the RDMA core is loaded."""
ALWAYS = (LOG, PCIE, MEMORY, BLOCK)
"""Attached once, at the start."""
GPU_MODULE = "nvidia"
GPU_MODULES = frozenset({GPU_MODULE, "nvidia_uvm"})
NIC_MODULE = "ib_core"
