"""Error counters of RDMA ports: retransmissions, packets out of order, errors of the physical link.

Names: Documentation/ABI/stable/sysfs-class-infiniband, and the drivers below drivers/infiniband. Which of them a port
has depends on its driver. `port_xmit_wait` is not among them: its unit differs from device to device, and it grows in
every network that is busy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory.topology import function_of_rdma
from kcover_ebpf.host.sysfs import text

_OF_LINK = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_OF_DRIVER = {
    "mlx5": (
        "out_of_sequence",
        "packet_seq_err",
        "implied_nak_seq_err",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
        "req_transport_retries_exceeded",
        "roce_adp_retrans",
        "rx_icrc_encapsulated",
    ),
    "rxe": (
        "out_of_seq_request",
        "rcvd_seq_err",
        "rcvd_rnr_err",
        "completer_retry_err",
        "retry_exceeded_err",
        "retry_rnr_exceeded_err",
    ),
    "bnxt_re": ("to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded"),
    "efa": ("retrans_pkts", "retrans_timeout_events"),
}
_COUNTERS = (
    *(f"counters/{name}" for name in _OF_LINK),
    *(f"hw_counters/{name}" for names in _OF_DRIVER.values() for name in names),
)


@dataclass(frozen=True, slots=True)
class PortErrors:
    """By how much the error counters of one port have grown since the reading before."""

    port: str
    """RDMA device and port ("mlx5_0/1")."""
    device: str
    """PCI address behind it; empty for a virtual one."""
    counters: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Port:
    """The files of a port that are read, and what is behind it."""

    files: tuple[Path, ...]
    device: str


class PortErrorReader:
    """Reads the error counters of RDMA ports; which ones a port has is looked up once."""

    def __init__(self) -> None:
        self._ports: dict[Path, dict[str, _Port]] = {}
        self._before: dict[Path, int] = {}

    def grown(self, devices: Collection[Path]) -> dict[Path, list[PortErrors]]:
        """What has grown since the last call at the ports of each of these devices (/sys/class/infiniband/NAME).

        What is read for the first time has not grown; nor has a counter that was set back.
        """
        self._ports = {device: self._ports.get(device) or _ports(device) for device in devices}
        before, self._before = self._before, {}
        return {
            device: [
                PortErrors(name, port.device, counters)
                for name, port in ports.items()
                if (counters := tuple(self._counted(port, before)))
            ]
            for device, ports in self._ports.items()
        }

    def _counted(self, port: _Port, before: dict[Path, int]) -> Iterator[tuple[str, int]]:
        for file in port.files:
            value = text(file)
            if value.isdecimal():
                count = self._before[file] = int(value)
                if count > before.get(file, count):
                    yield file.name, count - before[file]


def _ports(device: Path) -> dict[str, _Port]:
    function = function_of_rdma(device)
    found = {}
    for port in sorted((device / "ports").glob("*")):
        files = tuple(port / name for name in _COUNTERS if (port / name).exists())
        if files:
            found[f"{device.name}/{port.name}"] = _Port(files, function)
    return found
