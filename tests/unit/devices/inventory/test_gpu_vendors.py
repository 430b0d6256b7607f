"""GPUs of each vendor as its driver lists them, and who has which open."""

from __future__ import annotations

from pathlib import Path

from kcover_ebpf.devices.device_users import DeviceUsers
from kcover_ebpf.devices.inventory import topology
from kcover_ebpf.devices.inventory.gpu_vendors import VENDORS, Gpu
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid

AMD = "0000:c1:00.0"
PORT = "0000:c0:01.1"
DISPLAY = "0000:05:00.0"


def function(root: Path, address: str, class_code: str, driver: str, *above: str) -> Path:
    folder = root.joinpath("sys/devices/pci0000:c0", *above, address)
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{class_code}\n")
    (folder / "vendor").write_text("0x1002\n")
    (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    path = "/".join(("pci0000:c0", *above, address))
    (devices / address).symlink_to(f"../../../devices/{path}")
    return folder


def kfd_node(root: Path, number: int, **properties: int) -> None:
    folder = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
    folder.mkdir(parents=True)
    lines = "".join(f"{key} {value}\n" for key, value in properties.items())
    (folder / "properties").write_text(lines)


def host_with_amd(root: Path) -> None:
    """One GPU in two partitions behind a port, one that only draws, and a network card."""
    folder = function(root, AMD, "0x120000", "amdgpu", PORT)
    (folder / "drm/card1").mkdir(parents=True)
    (folder / "drm/renderD128").mkdir()
    (function(root, DISPLAY, "0x030000", "amdgpu") / "drm/renderD130").mkdir(parents=True)
    function(root, "0000:9a:00.0", "0x020000", "mlx5_core")
    kfd_node(root, 0, cpu_cores_count=96, drm_render_minor=0, location_id=0, domain=0)
    kfd_node(root, 1, drm_render_minor=128, location_id=0xC100, domain=0)
    kfd_node(root, 2, drm_render_minor=129, location_id=0xC100 | 1 << 28, domain=0)


def opens(root: Path, pid: int, *files: str) -> None:
    folder = root / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / str(number)).symlink_to(file)


def test_gpus__of_amd_are_found_with_the_files_of_their_partitions(tmp_path: Path) -> None:
    host_with_amd(tmp_path)
    assert topology.read(tmp_path).gpus == (
        Gpu(DISPLAY, -1, "", (DISPLAY,), frozenset({"/dev/dri/renderD130"})),
        Gpu(AMD, -1, "", (PORT, AMD), frozenset({"/dev/dri/renderD128", "/dev/dri/renderD129"})),
    )


def test_gpus__of_amd_without_its_compute_driver_have_the_file_that_draws(tmp_path: Path) -> None:
    folder = function(tmp_path, AMD, "0x120000", "amdgpu", PORT)
    (folder / "drm/renderD128").mkdir(parents=True)
    kfd_node(tmp_path, 1, drm_render_minor=128)
    (gpu,) = topology.read(tmp_path).gpus
    assert gpu.nodes == {"/dev/dri/renderD128"}


def test_device_users__a_process_holds_the_gpu_of_amd_whose_file_it_has_open(
    tmp_path: Path,
) -> None:
    host_with_amd(tmp_path)
    opens(tmp_path / "proc", 7, "/dev/kfd", "/dev/dri/renderD129")
    opens(tmp_path / "proc", 8, "/dev/kfd", "/dev/dri/renderD130")
    opens(tmp_path / "proc", 9, "/dev/null")
    users = DeviceUsers(tmp_path)
    users.open_files = OpenFiles(tmp_path / "proc")
    users.topology = topology.read(tmp_path)
    members = {Pid(7), Pid(8), Pid(9)}
    assert users.of(AMD, members, 0) == {7}
    assert users.of_any_gpu(members, 0) == {7, 8}
    assert users.below(PORT) == {AMD}


def test_vendors__no_two_have_a_name() -> None:
    assert len({vendor.name for vendor in VENDORS}) == len(VENDORS)
