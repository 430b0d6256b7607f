"""Chooses the checks that a node runs periodically while jobs run.

The choice is made again for each round, because a driver may have been loaded since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host import capabilities, host_programs
from kcover_ebpf.inspection.checks import (
    clock,
    d_state,
    devlink,
    kernel_log,
    links,
    memory,
    modules,
    nvml,
    pcie,
    peers,
    rdma,
    space,
    storage,
)
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, Cost
from kcover_ebpf.tunables.inspection import LEAST_PEERS

_HAS_DEVLINK = "mlx5_core"
"""The driver that always has health reporters; others (bnxt_en, ice) have them only with some
kernels and firmware."""


def _has_gpu(root: Path) -> bool:
    return bool(pci.nvidia_gpus(root))


def _has_rdma(root: Path) -> bool:
    devices = (root / "sys/class/infiniband").glob("*")
    return any(not pci.is_virtual(device / "device") for device in devices) or any(
        function.is_nic and function.vendor == pci.MELLANOX and not function.is_virtual
        for function in pci.functions(root)
    )


def _has_devlink(root: Path) -> bool:
    """True if an adapter has health reporters and we may enter its network; else every round would be unknown."""
    if all(function.driver != _HAS_DEVLINK for function in pci.functions(root)):
        return False
    is_other = host_programs.other_network(root) is not None
    return not is_other or capabilities.Capability.SYS_ADMIN in capabilities.effective()


_WHERE: tuple[tuple[Check, Callable[[Path], bool]], ...] = (
    (nvml.CHECK, _has_gpu),
    (modules.CHECK, _has_gpu),
    (pcie.CHECK, lambda _: True),
    (links.CHECK, lambda _: True),
    (rdma.CHECK, _has_rdma),
    (devlink.CHECK, _has_devlink),
    (storage.CHECK, lambda _: True),
    (space.SHM_CHECK, lambda _: True),
    (space.INODES_CHECK, lambda _: True),
    (memory.CHECK, lambda _: True),
    (clock.CHECK, lambda _: True),
    (d_state.CHECK, lambda _: True),
    (kernel_log.CHECK, lambda _: True),
)
"""Each check, and the test whether this node has the hardware for it."""


def scheduled(
    names: Sequence[str],
    plugins: Sequence[Check],
    options: InspectionOptions,
    left_out: Collection[str] = (),
) -> tuple[Check, ...]:
    """The checks of one round: the named ones, else those that this node has hardware or peers for, and light plug-ins.

    `left_out`: checks that still hang from an earlier round. `UsageError`: a name is unknown or that of a heavy
    check, or only one peer is named.
    """
    if 0 < len(options.peers) < LEAST_PEERS:
        raise UsageError("name at least two peers: if the only one is down, every node fails")
    fitting = [check for check, is_fit in _WHERE if is_fit(options.root)]
    if options.peers:
        fitting.append(peers.CHECK)
    has_peers = bool(options.peers)
    light = (check for check in plugins if check.cost is Cost.LIGHT)
    wanted = _named(names, plugins, has_peers=has_peers) if names else (*fitting, *light)
    for check in wanted:
        if check.cost is Cost.HEAVY:
            raise UsageError(
                f"the check {check.name!r} computes on the GPUs: run it on demand, not on a schedule"
            )
    return tuple(check for check in wanted if check.name not in left_out)


def _named(names: Sequence[str], plugins: Sequence[Check], *, has_peers: bool) -> tuple[Check, ...]:
    known = {check.name: check for check in (*(check for check, _ in _WHERE), *plugins)}
    if known.keys() >= set(names):
        return tuple(known[name] for name in dict.fromkeys(names))
    # imported here, because it imports all checks
    from kcover_ebpf.inspection.registry import chosen

    return chosen(names, plugins, has_peers=has_peers)
