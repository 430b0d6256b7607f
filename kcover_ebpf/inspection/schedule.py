"""The checks that a node runs again and again, beside its jobs.

Which they are is decided anew each time: a driver may have been loaded since.
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
"""The driver that always has health reporters; others (bnxt_en, ice) have them with some kernels and firmware alone."""


def _has_gpu(root: Path) -> bool:
    return bool(pci.nvidia_gpus(root))


def _has_rdma(root: Path) -> bool:
    devices = (root / "sys/class/infiniband").glob("*")
    return any(not pci.is_virtual(device / "device") for device in devices) or any(
        function.is_nic and function.vendor == pci.MELLANOX and not function.is_virtual
        for function in pci.functions(root)
    )


def _has_devlink(root: Path) -> bool:
    """An adapter whose driver reports health, in a network that we may enter: else every round would be unknown."""
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
"""What is run, and the hardware for which it is."""


def scheduled(
    names: Sequence[str],
    plugins: Sequence[Check],
    options: InspectionOptions,
    left_out: Collection[str] = (),
) -> tuple[Check, ...]:
    """The checks of one round: those named, else those for which this node has hardware or peers, and light plug-ins.

    `left_out`: checks of which an earlier process still hangs. `UsageError`: a name is wrong, or of a heavy check, or
    one peer is named alone.
    """
    if 0 < len(options.peers) < LEAST_PEERS:
        raise UsageError("name two peers at least: if the only one is down, every node fails")
    fitting = [check for check, is_fit in _WHERE if is_fit(options.root)]
    if options.peers:
        fitting.append(peers.CHECK)
    has_peers = bool(options.peers)
    light = (check for check in plugins if check.cost is Cost.LIGHT)
    wanted = _named(names, plugins, has_peers=has_peers) if names else (*fitting, *light)
    for other_check in wanted:
        if other_check.cost is Cost.HEAVY:
            raise UsageError(
                f"the check {other_check.name!r} computes on the GPUs: run it on demand, not on a schedule"
            )
    return tuple(check for check in wanted if check.name not in left_out)


def _named(names: Sequence[str], plugins: Sequence[Check], *, has_peers: bool) -> tuple[Check, ...]:
    known = {check.name: check for check in (*(check for check, _ in _WHERE), *plugins)}
    if known.keys() >= set(names):
        return tuple(known[name] for name in dict.fromkeys(names))
    # only now, because it imports all checks
    from kcover_ebpf.inspection.registry import chosen

    return chosen(names, plugins, has_peers=has_peers)
