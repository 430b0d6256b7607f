"""Start-up code shared by the programs: metrics, sources of facts, privileges, and ending signals."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host import capabilities
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.settings import Settings

if TYPE_CHECKING:
    from kcover_ebpf.devices.catalog import Catalog
    from kcover_ebpf.devices.telemetry.watch import TelemetryOptions
    from kcover_ebpf.devices.watch import DeviceWatch
    from kcover_ebpf.kernel.sampler import KernelSampler
    from kcover_ebpf.output.metrics import MetricsServer


_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class FactSources:
    """Sources of a program's facts: kernel and devices."""

    kernel: KernelSampler
    devices: DeviceWatch
    catalog: Callable[[], Catalog]
    """Returns the catalogue of Xids; read at the first call."""


def bind_metrics(address: str | None, stack: contextlib.ExitStack) -> MetricsServer | None:
    """A server that serves nothing yet, and is closed with `stack`; None without an address.

    Raises `UsageError` if the port cannot be bound.
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
    modules: Sequence[str] = (),
) -> FactSources:
    """The sampler and the watch of devices; they are closed with `stack`.

    `catalog`: the operator's changes; `PolicyError` for a bad file is raised here, not at the first Xid.
    `telemetry`: None: the GPUs are not read. `modules`: imported while the kernel verifies our programs, which
    takes as long.
    """
    # imported now, because a supervisor is forked and a port bound before
    from kcover_ebpf.devices.catalog.files import load
    from kcover_ebpf.kernel.sampler import KernelSampler

    read_catalog = cache(partial(load, catalog))
    if catalog is not None:
        read_catalog()
    with _beside(partial(KernelSampler.open, settings)) as opened:
        from kcover_ebpf.devices.watch import DeviceWatch

        for module in modules:
            importlib.import_module(module)
    kernel = stack.enter_context(opened())
    devices = DeviceWatch(
        kernel.maps, settings, read_catalog, pin_driver=settings.pin_driver, telemetry=telemetry
    )
    return FactSources(kernel, stack.enter_context(devices), read_catalog)


@contextlib.contextmanager
def _beside(make: Callable[[], _Made]) -> Iterator[Callable[[], _Made]]:
    """Run it in a thread in parallel with the block, which it ends before; returns its result, or raises its error."""
    made: list[_Made] = []
    errors: list[BaseException] = []

    def do() -> None:
        try:
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            errors.append(error)

    def result() -> _Made:
        if errors:
            raise errors[0]
        return made[0]

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield result
    finally:
        thread.join()


def drop_privileges(kept: frozenset[Capability], settings: Settings) -> None:
    """Keep only these capabilities; before the first thread starts, because each thread has its own."""
    # if there are GPUs, a driver that is loaded later gets its probes then
    later = {Capability.PERFMON} if pci.has_nvidia() else set()
    capabilities.drop(kept | later, capabilities.spare(nccl_probes=settings.nccl_probes))


def catch_ending(end: Callable[[], object]) -> None:
    """Have `end` called by the signal handler at each SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())
