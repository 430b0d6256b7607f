"""Checks that read /proc and /sys: hosts made of folders, each fault once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.checks import links, modules, pcie, rdma
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check
from kcover_ebpf.inspection.schedule import scheduled
from tests.unit.support.inspection_hosts import (
    GPU,
    NIC,
    SWITCH,
    found,
    kernel_thread,
    pci_device,
    write,
)

ALL_MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "gdrdrv")


def load_modules(root: Path, *names: str, state: str = "Live") -> None:
    kernel_thread(root)
    write(root / "proc/modules", "\n".join(f"{name} 1 0 - {state} 0x0" for name in names))


def test_inspection_devices__modules_of_a_healthy_node(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:5d:00.0")
    pci_device(tmp_path, "0000:c0:00.0", SWITCH)
    write(tmp_path / "sys/class/infiniband/mlx5_0/hca_type", "MT4129")
    write(tmp_path / "proc/77/comm", "nv-fabricmanage")
    load_modules(tmp_path, *ALL_MODULES)
    assert found(modules.CHECK, tmp_path).result is Result.PASS


@pytest.mark.parametrize(
    ("loaded", "state", "result", "words"),
    [
        ((), "Live", Result.FAIL, "nvidia is not loaded, with 1 GPU(s)"),
        (ALL_MODULES, "Loading", Result.FAIL, "nvidia is not loaded"),
        (("nvidia",), "Live", Result.FAIL, "fabric manager does not run"),
    ],
)
def test_inspection_devices__modules_that_are_missing(
    tmp_path: Path, loaded: tuple[str, ...], state: str, result: Result, words: str
) -> None:
    pci_device(tmp_path, "0000:5d:00.0")
    pci_device(tmp_path, "0000:c0:00.0", SWITCH)
    load_modules(tmp_path, *loaded, state=state)
    one = found(modules.CHECK, tmp_path)
    assert one.result is result
    assert words in one.evidence


def test_inspection_devices__a_fabric_manager_that_our_container_does_not_see(
    tmp_path: Path,
) -> None:
    pci_device(tmp_path, "0000:5d:00.0")
    pci_device(tmp_path, "0000:c0:00.0", SWITCH)
    load_modules(tmp_path, *ALL_MODULES)
    (tmp_path / "proc/2/stat").unlink()
    write(tmp_path / "proc/1/comm", "sh")
    one = found(modules.CHECK, tmp_path)
    assert (one.result, "hostPID" in one.advice) == (Result.UNKNOWN, True)


def test_inspection_devices__modules_that_only_slow_a_job_down(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:5d:00.0")
    write(tmp_path / "sys/class/infiniband/mlx5_0/hca_type", "MT4129")
    load_modules(tmp_path, "nvidia")
    one = found(modules.CHECK, tmp_path)
    assert one.result is Result.WARN
    assert "nvidia_uvm is not loaded" in one.evidence
    assert "nvidia_peermem is not loaded" in one.evidence
    assert "gdrdrv is not loaded" in one.evidence


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace_gpu_vfio_pci"])
def test_inspection_devices__no_module_is_expected_without_a_gpu(
    tmp_path: Path, driver: str
) -> None:
    given_away = pci_device(tmp_path, "0000:5d:00.0")
    (given_away / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers" / driver)
    one = found(modules.CHECK, tmp_path)
    assert one.result is Result.PASS
    assert "no module is expected" in one.evidence


def test_inspection_devices__modules_that_cannot_be_read(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:5d:00.0")
    assert found(modules.CHECK, tmp_path).result is Result.UNKNOWN


def link(root: Path, width: int, speed: str, class_code: str = GPU, slot: int = 16) -> Path:
    folder = pci_device(
        root,
        "0000:5d:00.0",
        class_code,
        current_link_width=width,
        max_link_width=16,
        current_link_speed=speed,
        max_link_speed="32.0 GT/s PCIe",
    )
    write(folder.parent / "max_link_width", slot)
    write(folder.parent / "max_link_speed", "32.0 GT/s PCIe")
    return folder


@pytest.mark.parametrize(
    ("width", "speed", "class_code", "slot", "result"),
    [
        (16, "32.0 GT/s PCIe", GPU, 16, Result.PASS),
        (8, "32.0 GT/s PCIe", GPU, 16, Result.FAIL),
        (8, "32.0 GT/s PCIe", GPU, 8, Result.PASS),  # the slot has no more
        (16, "2.5 GT/s PCIe", GPU, 16, Result.PASS),  # an idle GPU
        (16, "16.0 GT/s PCIe", NIC, 16, Result.WARN),
        (4, "32.0 GT/s PCIe", NIC, 16, Result.FAIL),
        (8, "32.0 GT/s PCIe", "0x120000", 16, Result.FAIL),
        (8, "32.0 GT/s PCIe", "0x010802", 16, Result.UNKNOWN),  # a disk is not searched for
    ],
)
def test_inspection_devices__pcie_links(
    tmp_path: Path, width: int, speed: str, class_code: str, slot: int, result: Result
) -> None:
    link(tmp_path, width, speed, class_code, slot)
    one = found(pcie.CHECK, tmp_path)
    assert one.result is result
    assert bool(one.advice) == (result is not Result.PASS)


def test_inspection_devices__pcie_errors_since_the_boot(tmp_path: Path) -> None:
    folder = link(tmp_path, 16, "32.0 GT/s PCIe")
    write(folder / "aer_dev_fatal", "DLP 2\nTOTAL_ERR_FATAL 2")
    write(folder / "aer_dev_nonfatal", "DLP 0\nTOTAL_ERR_NONFATAL 0")
    one = found(pcie.CHECK, tmp_path)
    assert one.result is Result.WARN
    assert "GPU 0000:5d:00.0: 2 fatal PCIe error(s)" in one.evidence
    assert "nonfatal" not in one.evidence


def test_inspection_devices__a_virtual_machine_shows_no_link(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:00:03.0", NIC, "0x1af4", current_link_speed="Unknown")
    one = found(pcie.CHECK, tmp_path)
    assert one.result is Result.UNKNOWN
    assert "none of 1" in one.evidence


def interface(root: Path, name: str, flags: str = "0x1003", carrier: str = "1") -> Path:
    folder = root / "sys/class/net" / name
    write(folder / "device/vendor", "0x15b3")
    write(folder / "flags", flags)
    write(folder / "carrier", carrier)
    write(folder / "speed", 200000)
    write(folder / "statistics/rx_errors", 7)
    return folder


def test_inspection_devices__links_that_are_well(tmp_path: Path) -> None:
    interface(tmp_path, "eth0")
    interface(tmp_path, "eth1", flags="0x1002", carrier="")
    write(tmp_path / "sys/class/net/lo/flags", "0x9")
    one = found(links.CHECK, tmp_path)
    assert one.result is Result.PASS
    assert one.evidence.splitlines() == [
        "eth0: up, 200000 Mb/s, 7 errors since the boot, none of them now",
        "eth1: switched off",
    ]


def test_inspection_devices__links_without_carrier(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", carrier="0")
    assert found(links.CHECK, tmp_path).result is Result.WARN
    (tmp_path / "sys/class/net/eth0/master").symlink_to(tmp_path / "sys/class/net/bond0")
    (tmp_path / "sys/class/net/bond0").mkdir()
    assert found(links.CHECK, tmp_path).result is Result.WARN, "it may be a bridge"
    (tmp_path / "sys/class/net/bond0/bonding").mkdir()
    one = found(links.CHECK, tmp_path)
    assert one.result is Result.FAIL
    assert one.evidence == "eth0: no carrier, a member of bond0"


def test_inspection_devices__errors_that_grow(tmp_path: Path) -> None:
    folder = interface(tmp_path, "eth0")

    def pause(_: float) -> None:
        write(folder / "statistics/rx_errors", 12)

    one = found(links.CHECK, tmp_path, pause=pause)
    assert one.result is Result.WARN
    assert "rx_errors +5" in one.evidence


def test_inspection_devices__no_link_is_unknown(tmp_path: Path) -> None:
    assert found(links.CHECK, tmp_path).result is Result.UNKNOWN


def port(root: Path, device: str, state: str = "4: ACTIVE", rate: str = "400", **more: str) -> Path:
    write(root / f"sys/class/infiniband/{device}/hca_type", more.get("model", "MT4129"))
    folder = root / f"sys/class/infiniband/{device}/ports/1"
    write(folder / "state", state)
    write(folder / "phys_state", more.get("physical", "5: LinkUp"))
    write(folder / "rate", f"{rate} Gb/sec (4X NDR)")
    write(folder / "link_layer", "InfiniBand")
    write(folder / "counters/link_downed", 1)
    write(folder / "counters/symbol_error", 5)
    return folder


@pytest.mark.parametrize(
    ("states", "rate", "model", "result", "words"),
    [
        (("4: ACTIVE", "5: LinkUp"), "400", "MT4129", Result.PASS, "went down 1 time(s)"),
        (("1: DOWN", "2: Polling"), "400", "MT4129", Result.FAIL, "mlx5_1/1: DOWN (Polling)"),
        (("1: DOWN", "3: Disabled"), "400", "MT4129", Result.PASS, "switched off"),
        (("2: INIT", "5: LinkUp"), "400", "MT4129", Result.FAIL, "subnet manager"),
        (("4: ACTIVE", "5: LinkUp"), "100", "MT4129", Result.WARN, "100 Gb/s, another port"),
        (("4: ACTIVE", "5: LinkUp"), "100", "MT4125", Result.PASS, "100 Gb/s"),
    ],
)
def test_inspection_devices__rdma_ports(
    tmp_path: Path, states: tuple[str, str], rate: str, model: str, result: Result, words: str
) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", states[0], rate, physical=states[1], model=model)
    one = found(rdma.CHECK, tmp_path)
    assert one.result is result
    assert words in one.evidence


@pytest.mark.parametrize(
    ("flags", "ups", "result", "words"),
    [
        ("0x1002", 1, Result.PASS, "switched off"),
        ("0x1003", 1, Result.FAIL, "eth1 is switched on, and has lost its link"),
        ("0x1003", 0, Result.WARN, "eth1 is switched on, and has had no link since the boot"),
        (None, 0, Result.PASS, "switched off"),  # moved into the network of a pod
    ],
)
def test_inspection_devices__the_interface_says_whether_a_port_on_ethernet_was_switched_off(
    tmp_path: Path, flags: str | None, ups: int, result: Result, words: str
) -> None:
    """mlx5 and bnxt_re report a pulled cable as they report a port that was switched off."""
    folder = port(tmp_path, "mlx5_0", "1: DOWN", physical="3: Disabled")
    write(folder / "link_layer", "Ethernet")
    write(folder / "gid_attrs/ndevs/0", "eth1")
    if flags is not None:
        write(interface(tmp_path, "eth1", flags, "0") / "carrier_up_count", ups)
    one = found(rdma.CHECK, tmp_path)
    assert one.result is result
    assert words in one.evidence


def test_inspection_devices__rdma_errors_that_grow(tmp_path: Path) -> None:
    folder = port(tmp_path, "mlx5_0")

    def pause(_: float) -> None:
        write(folder / "counters/symbol_error", 9)

    one = found(rdma.CHECK, tmp_path, pause=pause)
    assert one.result is Result.WARN
    assert "symbol_error +4" in one.evidence


def test_inspection_devices__only_a_driver_that_counts_is_quoted_on_a_ports_past(
    tmp_path: Path,
) -> None:
    """rdma_rxe counts beside the port's state and not with its counters, other drivers for Ethernet nowhere."""
    folder = port(tmp_path, "rxe0")
    (folder / "counters/link_downed").unlink()
    assert "since the boot" not in found(rdma.CHECK, tmp_path).evidence
    write(folder / "hw_counters/link_downed", 3)
    assert "went down 3 time(s) since the boot" in found(rdma.CHECK, tmp_path).evidence


def is_scheduled(check: Check, root: Path) -> bool:
    return check in scheduled((), (), InspectionOptions(root=root))


def on_pci(root: Path, device: str, function: Path) -> None:
    (root / f"sys/class/infiniband/{device}/device").symlink_to(function)


def test_inspection_devices__an_rdma_port_of_a_virtual_function_is_not_judged(
    tmp_path: Path,
) -> None:
    physical = pci_device(tmp_path, "0000:40:00.0", NIC, "0x15b3")
    virtual = pci_device(tmp_path, "0000:40:00.1", NIC, "0x15b3")
    (virtual / "physfn").symlink_to(physical)
    port(tmp_path, "mlx5_1", "1: DOWN", physical="2: Polling")
    on_pci(tmp_path, "mlx5_1", virtual)
    one = found(rdma.CHECK, tmp_path)
    assert one.result is Result.UNKNOWN, "whether the card is well, no virtual function shows"
    assert one.evidence == "only virtual functions have RDMA devices here"
    assert is_scheduled(rdma.CHECK, tmp_path), "the card itself should have one"
    write(physical / "vendor", "0x8086")
    assert not is_scheduled(rdma.CHECK, tmp_path)
    port(tmp_path, "mlx5_0")
    on_pci(tmp_path, "mlx5_0", physical)
    one = found(rdma.CHECK, tmp_path)
    assert (one.result, "mlx5_1" in one.evidence) == (Result.PASS, False)


def test_inspection_devices__a_virtual_function_in_its_machine_is_a_port_like_others(
    tmp_path: Path,
) -> None:
    """There it has no link to the card that it is of."""
    port(tmp_path, "mlx5_0", "1: DOWN", physical="2: Polling")
    on_pci(tmp_path, "mlx5_0", pci_device(tmp_path, "0000:00:05.0", NIC, "0x15b3"))
    assert found(rdma.CHECK, tmp_path).result is Result.FAIL


def test_inspection_devices__no_rdma_device(tmp_path: Path) -> None:
    assert found(rdma.CHECK, tmp_path).result is Result.UNKNOWN
    pci_device(tmp_path, "0000:40:00.0", NIC, "0x15b3")
    one = found(rdma.CHECK, tmp_path)
    assert one.result is Result.WARN
    assert one.advice == "modprobe mlx5_ib"
