"""The BPF device families, and what stays unobserved without each of their probes."""

from __future__ import annotations

from kcover_ebpf.kernel.probes import Family, Probe

GPU = Family(
    "gpu",
    (
        Probe("on_xid", "Xids immediately and with certainty (log lines are read instead)"),
        Probe("on_open", "which process opens a GPU (open files are read instead)"),
        Probe("on_close", "which process closes a GPU (open files are read instead)"),
        Probe("on_register", "which process computes on a GPU"),
        Probe("on_unregister", "when a process stops computing on a GPU"),
    ),
)
"""Attached while the driver is loaded, as kprobes, so that the driver can still be unloaded."""

GPU_PINNED = Family(
    "gpu", (Probe("on_xid_tracepoint", "the driver's own error reports"), *GPU.probes)
)
"""GPU with the driver's own tracepoint in addition, which prevents unloading of the driver."""

_MODULES = (
    Probe("on_module_load", "when a driver is loaded (probes are attached at the next poll)"),
    Probe("on_module_free", "when a driver is unloaded"),
)
_LINES = "drivers' lines as they are printed (the log is polled instead)"
LOG = Family("log", (Probe("on_console", _LINES), *_MODULES))
LOG_STORED = Family(
    "log",
    (
        Probe("on_stored", _LINES),
        Probe("on_continued", "lines that a driver prints in parts (the log is polled instead)"),
        *_MODULES,
    ),
)
"""Replaces LOG on kernels before 6.0, whose tracepoint omits lines that no console shows."""
PCIE = Family("pcie", (Probe("on_aer", "PCI Express errors"),))
MEMORY = Family(
    "memory",
    (
        Probe("on_memory_controller", "memory errors reported by the memory controller"),
        Probe("on_page", "pages with memory errors"),
        Probe("on_machine_check", "machine checks"),
        Probe("on_arm_processor", "processor errors that the firmware of arm64 machines reports"),
        Probe("on_vendor_section", "hardware errors that firmware reports in a vendor's own form"),
    ),
)
BLOCK = Family("block", (Probe("on_block_error", "failed disk requests"),))
NIC = Family(
    "nic",
    (
        Probe("on_rdma", "RDMA ports that go down and devices that fail (their state is polled)"),
        Probe("on_health", "faults reported by network drivers through devlink"),
    ),
)
"""Its first probe is attached only while the RDMA core is loaded."""
ALWAYS = (LOG, PCIE, MEMORY, BLOCK)
"""Families that are attached once, at the start, whichever drivers are loaded."""
GPU_MODULE = "nvidia"
GPU_MODULES = frozenset({GPU_MODULE, "nvidia_uvm"})
NIC_MODULE = "ib_core"
