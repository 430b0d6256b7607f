"""What the programs do alike at their start: metrics, what they observe with, privileges, the signals that end them."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from kcover_ebpf.hardware import pci
from kcover_ebpf.kernel import capabilities
from kcover_ebpf.kernel.capabilities import Capability
from kcover_ebpf.settings import Settings, TelemetryOptions
from kcover_ebpf.tunables.host import START_SWITCH_S

if TYPE_CHECKING:
    from kcover_ebpf.hardware.catalog import Catalog
    from kcover_ebpf.hardware.watch import DeviceWatch
    from kcover_ebpf.kernel.sampler import KernelSampler
    from kcover_ebpf.output.metrics import MetricsServer


@dataclass(frozen=True, slots=True)
class FactSources:
    """Where the facts of a program come from."""

    kernel: KernelSampler
    devices: DeviceWatch
    catalog: Callable[[], Catalog]
    """What Xids mean; read at the first call."""


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


def open_sources(
    settings: Settings,
    catalog: Path | None,
    telemetry: TelemetryOptions | None,
    stack: contextlib.ExitStack,
    needed_next: Sequence[str] = (),
) -> FactSources:
    """The sampler and the watch of devices; they are closed with `stack`.

    `catalog`: the operator's changes; `PolicyError` for a bad file comes now, not at the first Xid. `telemetry`:
    None: the GPUs are not read. `needed_next`: modules that the caller imports next; they are imported meanwhile.
    """
    # loaded only now: a supervisor is forked and a port bound before
    from kcover_ebpf.kernel.sampler import KernelSampler

    if catalog is not None:
        from kcover_ebpf.hardware.catalog.files import load

        load(catalog)
    with _imported_meanwhile("kcover_ebpf.hardware.watch", *needed_next):
        kernel = stack.enter_context(KernelSampler.open(settings))
    from kcover_ebpf.hardware.catalog.files import load
    from kcover_ebpf.hardware.watch import DeviceWatch

    read_catalog = cache(partial(load, catalog))
    devices = DeviceWatch(
        kernel.maps, settings, read_catalog, pin_driver=settings.pin_driver, telemetry=telemetry
    )
    return FactSources(kernel, stack.enter_context(devices), read_catalog)


@contextlib.contextmanager
def _imported_meanwhile(*names: str) -> Iterator[None]:
    """Import modules while the kernel checks programs; a failure shows where they are used.

    The thread has ended with the block, for privileges belong to threads.
    """

    def work() -> None:
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(START_SWITCH_S)
    thread = threading.Thread(target=work, name="kcover-import")
    thread.start()
    try:
        yield
    finally:
        thread.join()
        sys.setswitchinterval(interval_s)


def drop_privileges(kept: frozenset[Capability], settings: Settings) -> None:
    """Keep these capabilities alone; before the first thread is started, for they belong to threads."""
    # where there are GPUs, a driver that is loaded later gets its probes then
    later = {Capability.PERFMON} if pci.has_nvidia() else set()
    capabilities.drop(kept | later, capabilities.spare(nccl_probes=settings.nccl_probes))


def catch_ending(end: Callable[[], object]) -> None:
    """`end` is called at each SIGTERM and SIGINT, by the signal handler."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())
