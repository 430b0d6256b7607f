"""What the checks found, by GPU and network adapter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.checks import links, nvml, pcie, rdma
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, Cost, PartResult, failed, passed
from kcover_ebpf.inspection.round import results_by_device
from tests.unit.support.inspection_hosts import GPU, NIC, SWITCH, pci_device, write

GPU_AT, NIC_AT = "0000:5d:00.0", "0000:0a:00.0"


def link(folder: Path, width: int = 16) -> None:
    """A PCIe link of sixteen lanes, of which so many work."""
    for name, value in (("current_link_width", width), ("max_link_width", 16)):
        write(folder / name, value)
        write(folder.parent / name, 16)
    for name in ("current_link_speed", "max_link_speed"):
        write(folder / name, "32.0 GT/s PCIe")
        write(folder.parent / name, "32.0 GT/s PCIe")


def found(root: Path, *checks: Check) -> dict[str, PartResult]:
    options = InspectionOptions(root=root, pause=lambda _: None)
    results = runner.inspect(checks, options)
    return {part.name: part for part in results_by_device(root, results)}


def answering(*findings: object) -> Check:
    """The check `nvml` with these findings."""
    return replace(nvml.CHECK, find=lambda _: iter(findings))  # type: ignore[arg-type]


def test_inspect__a_gpu_is_what_nvml_and_its_link_say(tmp_path: Path) -> None:
    link(pci_device(tmp_path, GPU_AT), width=8)
    seen = found(tmp_path, pcie.CHECK, answering(passed("GPU 0: healthy", GPU_AT)))[GPU_AT]
    assert (seen.kind, seen.result) == ("gpu", Result.FAIL)
    assert seen.evidence == (
        f"GPU {GPU_AT}: x8 at 32 GT/s, x16 is possible",
        "GPU 0: healthy",
    )
    assert "reseat" in seen.advice


def test_inspect__a_gpu_of_nvidia_that_nvml_says_nothing_about_is_unknown(tmp_path: Path) -> None:
    link(pci_device(tmp_path, GPU_AT))
    seen = found(tmp_path, pcie.CHECK)[GPU_AT]
    assert seen.result is Result.UNKNOWN
    assert seen.evidence[0] == "NVML gave no answer about it"
    other = found(tmp_path, pcie.CHECK, answering(failed("it is lost", "reboot", GPU_AT)))[GPU_AT]
    assert (other.result, other.advice) == (Result.FAIL, "reboot")


def test_inspect__a_gpu_that_has_left_the_bus_is_what_nvml_says(tmp_path: Path) -> None:
    lost = failed("GPU 0 gives no answer: GPU is lost", "reboot", GPU_AT)
    seen = found(tmp_path, pcie.CHECK, answering(lost))
    assert {name: (result.kind, result.result) for name, result in seen.items()} == {
        GPU_AT: ("gpu", Result.FAIL)
    }


def test_inspect__an_adapter_is_what_its_link_its_port_and_its_interface_say(
    tmp_path: Path,
) -> None:
    folder = pci_device(tmp_path, NIC_AT, NIC, vendor="0x15b3")
    link(folder)
    interface = tmp_path / "sys/class/net/ens1"
    for name, value in (("flags", "0x1003"), ("carrier", "1"), ("speed", "400000")):
        write(interface / name, value)
    (interface / "device").symlink_to(folder)
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name, value in (("state", "1: DOWN"), ("phys_state", "2: Polling"), ("rate", "400 Gb")):
        write(port / name, value)
    (port.parents[1] / "device").symlink_to(folder)
    seen = found(tmp_path, pcie.CHECK, links.CHECK, rdma.CHECK)[NIC_AT]
    assert (seen.kind, seen.result) == ("nic", Result.FAIL)
    first, *others = seen.evidence
    assert first == "mlx5_0/1: DOWN (Polling)"
    assert [line.partition(":")[0] for line in others] == ["NIC 0000", "ens1"]


def test_inspect__what_is_no_device_of_a_job_is_left_out(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:01:00.0", "0x030000", vendor="0x1a03")  # the board's management
    pci_device(tmp_path, "0000:02:00.0", SWITCH)
    virtual = pci_device(tmp_path, "0000:0a:00.2", NIC)
    (virtual / "physfn").symlink_to(virtual)
    pci_device(tmp_path, "0000:03:00.0", GPU, vendor="0x1002")
    seen = found(tmp_path)
    assert list(seen) == ["0000:03:00.0"]
    assert seen["0000:03:00.0"].evidence == ("no check examined it",)


def test_inspect__a_check_that_hangs_leaves_its_gpus_unknown(tmp_path: Path) -> None:
    link(pci_device(tmp_path, GPU_AT))

    def hang(_: InspectionOptions):
        yield passed("GPU 0: healthy", GPU_AT)
        while True:
            pass

    slow = Check("nvml", Cost.LIGHT, 0.5, "", "", hang)
    assert found(tmp_path, pcie.CHECK, slow)[GPU_AT].result is Result.UNKNOWN


def test_address_below__a_device_without_a_pci_address(tmp_path: Path) -> None:
    assert pci.address_below(tmp_path) == ""
    (tmp_path / "device").symlink_to("../../virtio0")
    assert pci.address_below(tmp_path) == ""
