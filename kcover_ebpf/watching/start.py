"""What the programs do alike at their start: metrics, privileges, the signals that end them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from kcover_ebpf.hardware import topology
from kcover_ebpf.kernel import capabilities
from kcover_ebpf.kernel.capabilities import Capability
from kcover_ebpf.settings import Settings

if TYPE_CHECKING:
    from kcover_ebpf.output.metrics import MetricsServer


def bind_metrics(address: str | None, stack: contextlib.ExitStack) -> MetricsServer | None:
    """A server that serves nothing yet, and is closed with `stack`; None without an address.

    Raises `UsageError` where the port cannot be had.
    """
    if address is None:
        return None
    from kcover_ebpf.output.metrics import MetricsServer, parse_address

    server = MetricsServer(parse_address(address))
    stack.callback(server.close)
    return server


def drop_privileges(kept: frozenset[Capability], settings: Settings) -> None:
    """Keep these capabilities alone; before the first thread is started, for they belong to threads."""
    # where there are GPUs, a driver that is loaded later gets its probes then
    later = {Capability.PERFMON} if topology.has_gpu() else set()
    capabilities.drop(kept | later, capabilities.spare(nccl_probes=settings.nccl_probes))


def catch_ending(end: Callable[[], object]) -> None:
    """`end` is called at each SIGTERM and SIGINT, by the signal handler."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())
