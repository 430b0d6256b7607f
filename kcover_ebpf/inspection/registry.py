"""All shipped checks, and the selection among them."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.errors import UsageError
from kcover_ebpf.inspection.checks import (
    clock,
    d_state,
    devlink,
    kernel_log,
    links,
    memory,
    modules,
    nvidia_smi,
    nvml,
    pcie,
    peers,
    rdma,
    space,
    storage,
)
from kcover_ebpf.inspection.result import Check, Cost

CHECKS = (
    nvml.CHECK,
    nvidia_smi.CHECK,
    modules.CHECK,
    pcie.CHECK,
    links.CHECK,
    rdma.CHECK,
    devlink.CHECK,
    storage.CHECK,
    space.SHM_CHECK,
    space.INODES_CHECK,
    memory.CHECK,
    clock.CHECK,
    d_state.CHECK,
    kernel_log.CHECK,
    peers.CHECK,
)
"""Every check, in the order of the output."""


def chosen(names: Sequence[str], plugins: Sequence[Check], *, has_peers: bool) -> tuple[Check, ...]:
    """The checks with these names, in order; without names, all light ones.

    Peers are checked only if there are some. `UsageError` for an unknown name.
    """
    known = {check.name: check for check in (*CHECKS, *plugins)}
    if not names:
        light = (check for check in known.values() if check.cost is Cost.LIGHT)
        return tuple(check for check in light if has_peers or check is not peers.CHECK)
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"no check is named {wrong[0]!r}; there are: {', '.join(known)}")
    if "peers" in names and not has_peers:
        raise UsageError("the check 'peers' needs peers: --peer HOST:PORT")
    return tuple(known[name] for name in dict.fromkeys(names))
