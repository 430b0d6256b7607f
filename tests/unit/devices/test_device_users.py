"""Which processes have a device open, which function a device is, and calls into a driver that hang."""

import threading

import pytest

from kcover_ebpf.devices.device_users import DeviceUsers
from kcover_ebpf.devices.inventory import pci, topology
from kcover_ebpf.devices.inventory.gpu_vendors import Gpu
from kcover_ebpf.devices.inventory.open_holders import OpenHolders
from kcover_ebpf.devices.stuck_ioctl import StuckCalls
from kcover_ebpf.facts.devices import (
    CudaContext,
    DeviceHeld,
)
from kcover_ebpf.facts.host import ThreadReading, WaitedFile
from kcover_ebpf.ids import Inode, Pid, Tid
from kcover_ebpf.tunables.devices import HOLDER_KEPT_NS
from tests.unit.support.patience import soon

NIC = "0000:9a:00.0"
GPU, UUID = "0000:5d:00.0", "GPU-00112233-4455-6677-8899-aabbccddeeff"


def held(pid: int, file: int, at_ns: int = 0, *, opened: bool = True, minor: int = 0) -> DeviceHeld:
    return DeviceHeld(at_ns, Pid(pid), minor, file, opened)


def test_open_holders__holders():
    holders = OpenHolders()
    holders.on_opened(held(1, 100))
    holders.on_opened(held(2, 200, minor=255))
    assert holders.of(0, UUID, 1) == {1}
    assert holders.of(1, UUID, 1) == set()
    # the last reference is dropped by whoever has it, also by another process
    holders.on_opened(held(9, 100, at_ns=5, opened=False))
    assert holders.of(0, UUID, HOLDER_KEPT_NS) == {1}
    assert holders.of(0, UUID, HOLDER_KEPT_NS + 6) == set()


def test_open_holders__compute_contexts():
    holders = OpenHolders()
    holders.on_context(CudaContext(0, Pid(4), UUID, True))
    assert holders.of(-1, UUID, 0) == {4}
    holders.on_context(CudaContext(0, Pid(4), UUID, False))
    assert holders.of(-1, UUID, 0) == set()
    holders.on_context(CudaContext(0, Pid(4), UUID, True))
    holders.on_exit(Pid(4))
    assert holders.of(-1, UUID, 0) == set()


def test_has_nvidia__topology(tmp_path):
    info = tmp_path / "proc/driver/nvidia/gpus/0000:5D:00.0/information"
    info.parent.mkdir(parents=True)
    info.write_text(f"Model: \t\t X\nGPU UUID: \t {UUID}\nDevice Minor: \t 3\n")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / GPU).symlink_to(f"../../../devices/pci0000:5c/0000:5c:00.0/{GPU}")
    real = tmp_path / "sys/devices/pci0000:5c/0000:5c:00.0" / GPU
    real.mkdir(parents=True)
    assert not pci.has_nvidia(tmp_path)
    (real / "class").write_text("0x030200\n")
    (real / "vendor").write_text("0x10de\n")
    assert pci.has_nvidia(tmp_path)
    nic = tmp_path / "sys/class/net/eth0"
    nic.mkdir(parents=True)
    (nic / "device").symlink_to("../../../0000:9a:00.0")
    virtual = tmp_path / "sys/class/net/lo"
    virtual.mkdir()
    found = topology.read(tmp_path)
    (gpu,) = found.gpus
    assert (gpu.minor, gpu.uuid, gpu.path) == (3, UUID, ("0000:5c:00.0", GPU))
    assert [port.name for port in found.ports] == ["eth0"]
    assert found.gpus_below("0000:5c:00.0") == (gpu,)
    assert found.gpus_below("0000:00:00.0") == ()
    assert found.ports_below("0000:9a:00.0") == found.ports
    # a driver that is gone takes its list with it; the device is still known
    assert found.joined(topology.Topology()).gpus == (gpu,)


def test_device_users__rdma_devices_and_their_files(tmp_path):
    """Also one that is a part of a NIC, with the bus of such parts between, and one made of software."""
    classes = tmp_path / "sys/class"
    bus = tmp_path / "sys/devices/pci0000:99/0000:99:01.0" / NIC
    for name, place in (("mlx5_0", bus), ("mlx5_2", bus / "mlx5_core.sf.4")):
        folder = classes / "infiniband" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(place)
    (classes / "net/eth0").mkdir(parents=True)
    (classes / "net/eth0/device").symlink_to(bus)
    for name, interface in (("soft", "veth1"), ("rxe_eth0", "eth0")):
        interfaces = classes / "infiniband" / name / "ports/1/gid_attrs/ndevs"
        interfaces.mkdir(parents=True)
        (interfaces / "0").write_text(f"{interface}\n")
    for number, name in enumerate(("soft", "mlx5_2", "mlx5_0", "rxe_eth0")):
        verbs = classes / f"infiniband_verbs/uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{name}\n")
    ports = {port.name: (port.device, port.node) for port in topology.read(tmp_path).ports}
    assert ports == {
        "eth0": (NIC, ""),
        "mlx5_0": (NIC, "/dev/infiniband/uverbs2"),
        "mlx5_2": (NIC, "/dev/infiniband/uverbs1"),
        "rxe_eth0": (NIC, "/dev/infiniband/uverbs3"),
    }
    whose = DeviceUsers(tmp_path)
    whose.learn()
    whose.refresh()
    assert [whose.function_of(name) for name in ("mlx5_2/1", "mlx5_0", "soft/1")] == [NIC, NIC, ""]


def reading(at_s: float, *targets: str) -> ThreadReading:
    files = tuple(WaitedFile(3, "device", target, Inode(0), "", "") for target in targets)
    at_ns = int(at_s * 1e9)
    return ThreadReading(at_ns, Pid(7), Tid(8), "rm_wait", None, False, files, (), None, ())


@pytest.mark.parametrize(
    ("readings", "in_d", "reported"),
    [
        ([reading(0, "/dev/nvidia0"), reading(5, "/dev/nvidia0")], True, [GPU]),
        ([reading(t, "/dev/nvidia0") for t in (0, 2, 5, 6, 9)], True, [GPU]),
        ([reading(0, "/dev/nvidia0"), reading(3, "/dev/nvidia0")], True, []),
        ([reading(0, "/dev/nvidia0"), reading(5, "/dev/nvidia0")], False, []),
        ([reading(0, "/dev/nvidia0"), reading(3), reading(5, "/dev/nvidia0")], True, []),
        ([reading(0, "/mnt/data"), reading(9, "/mnt/data")], True, []),
        ([reading(0, "/dev/nvidiactl"), reading(5, "/dev/nvidiactl")], True, [GPU]),
        ([reading(0, "/dev/nvidia5"), reading(5, "/dev/nvidia5")], True, [""]),
    ],
    ids=[
        "a call that lasts",
        "is reported once",
        "a call that may end",
        "a call that a signal ends",
        "a call that ended between",
        "a file",
        "the control file means the GPU that is held",
        "an unknown GPU",
    ],
)
def test_device_users__driver_calls_that_hang(readings, in_d, reported, tmp_path):
    whose = DeviceUsers(tmp_path)
    whose.topology = topology.Topology((Gpu(GPU, 0, UUID, (GPU,), frozenset({"/dev/nvidia0"})),))
    if reported != [""]:
        whose.observe(DeviceHeld(0, Pid(7), 0, 1, True))
    calls = StuckCalls(whose, lambda pid, tid: in_d)
    found = [
        call for other_reading in readings if (call := calls.observe(other_reading)) is not None
    ]
    assert [call.device for call in found] == reported
    assert all(call.uuid == (UUID if call.device else "") for call in found)


def test_mig_nodes__the_users_of_a_mig_instance(tmp_path):
    caps = tmp_path / "proc/driver/nvidia-caps"
    caps.mkdir(parents=True)
    (caps / "mig-minors").write_text(
        "config 1\nmonitor 2\ngpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\ngpu0/gi2/access 12\n"
        "gpu1/gi1/access 138\n"
    )
    assert topology.mig_nodes(tmp_path, 0, 1) == {
        "/dev/nvidia-caps/nvidia-cap3",
        "/dev/nvidia-caps/nvidia-cap4",
    }
    assert topology.mig_nodes(tmp_path, 0, 7) == frozenset()
    assert topology.mig_nodes(tmp_path / "none", 0, 1) == frozenset()


def test_device_users__a_driver_that_does_not_answer_is_waited_for_once(tmp_path, monkeypatch):
    """/proc/driver/nvidia takes locks of the driver, which may hang just when a job does."""
    over = threading.Event()
    found = topology.Topology((Gpu(GPU, 0, UUID, (GPU,), frozenset({"/dev/nvidia0"})),))
    monkeypatch.setattr("kcover_ebpf.devices.device_users.DEVICES_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(
        "kcover_ebpf.devices.device_users.topology.read",
        lambda _: found if over.wait() else None,
    )
    whose = DeviceUsers(tmp_path)
    for _ in range(9):
        whose.learn()
        whose.refresh()
    assert whose.topology == topology.Topology()
    over.set()

    def refreshed() -> bool:
        whose.refresh()
        return whose.topology != topology.Topology()

    assert soon(refreshed)
    assert whose.topology == found
