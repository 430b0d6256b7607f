"""What a node's report says of its devices: which are broken, whose they are, when they are well again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.agent.node_health.device_faults import NodeDeviceFaults, devices_of
from kcover_ebpf.devices.attribution import Attributed, Attribution
from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.devices.inventory.gpu_vendors import Gpu
from kcover_ebpf.devices.inventory.identity import DeviceIdentities, slot_of
from kcover_ebpf.devices.inventory.topology import Port, Topology
from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    AnnouncedFault,
    DeviceNotice,
    Notice,
    PortChange,
    Rung,
    XidReported,
)
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid

PORT, GPU, OTHER, NIC = "0000:5c:00.0", "0000:5d:00.0", "0000:5e:00.0", "0000:9a:00.0"
BELOW = {PORT: {GPU, OTHER}, GPU: {GPU}}
S = 1_000_000_000


class FakeUsers:
    """The devices of a host, and who holds them."""

    topology = Topology()

    def __init__(self) -> None:
        self.held: dict[str, set[Pid]] = {}
        self.open_files = OpenFiles()

    def below(self, device: str) -> set[str]:
        return BELOW.get(device, set())

    def function_of(self, port: str) -> str:
        return {"mlx5_0/1": NIC, "mlx5_0/2": NIC}.get(port, "")

    def uuid(self, device: str) -> str:
        return ""

    def of(self, device: str, members: Collection[Pid], *_: object) -> set[Pid]:
        return self.held.get(device, set()) & set(members)


class Board(NodeDeviceFaults):
    """Faults of a node, as `DeviceWatch` and the loop have it learn of them."""

    def __init__(self, driver: str | None = None) -> None:
        self.users, self.driver = FakeUsers(), driver
        self.attribution = Attribution(self.users, shipped, 8 * S)  # type: ignore[arg-type]
        super().__init__(self.attribution.used)

    def observe(self, fact: Fact, pods: frozenset[str] = frozenset()) -> None:
        """With the pods that are concerned."""
        super().observe(fact)
        self._add(self._of(fact), pods)

    def on_pass(self, now_ns: int) -> None:
        self._add(self.attribution.of_time((), now_ns), frozenset())
        super().on_pass(now_ns)

    def _add(self, found: Attributed, pods: frozenset[str]) -> None:
        for fault in found:
            if isinstance(fault, AnnouncedFault):
                self.add(fault, pods)

    def _of(self, fact: Fact) -> Attributed:
        match fact:
            case XidReported():
                return self.attribution.of_xid(fact, (), fact.boottime_ns, self.driver)
            case AerError():
                return self.attribution.of_aer(fact, (), fact.boottime_ns)
            case DeviceNotice():
                return self.attribution.of_notice(fact, (), fact.boottime_ns)
            case PortChange():
                return self.attribution.of_port(fact, ())
            case _:
                return []


board = Board


def xid(number: int, text: str = "", *, confirmed: bool = True) -> XidReported:
    return XidReported(3 * S, GPU, number, text, Rung.KPROBE, confirmed=confirmed)


def aer(device: str, severity: AerSeverity) -> AerError:
    return AerError(3 * S, device, severity, 0x20, ("Surprise Down Error",), 1)


def notice(device: str, kind_notice: Notice) -> DeviceNotice:
    return DeviceNotice(3 * S, device, kind_notice, kind_notice.value)


def port(up: bool, name: str = "mlx5_0/1", device: str = NIC) -> PortChange:
    return PortChange(3 * S, name, device, up, "port up" if up else "port down")


def reported(known_faults: NodeDeviceFaults) -> list[tuple[str, str, bool]]:
    return [(fault.device, fault.fault, fault.fatal) for fault in known_faults.reported(5 * S)]


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (xid(79), [(GPU, "xid_79", True)]),
        (xid(63), [(GPU, "xid_63", False)]),
        (xid(79, confirmed=False), []),
        (aer(GPU, AerSeverity.FATAL), [(GPU, "aer_fatal", True)]),
        (aer(PORT, AerSeverity.FATAL), [(GPU, "aer_fatal", True), (OTHER, "aer_fatal", True)]),
        (aer("0000:01:00.0", AerSeverity.FATAL), [("0000:01:00.0", "aer_fatal", True)]),
        (aer(GPU, AerSeverity.NONFATAL), []),
        (aer(GPU, AerSeverity.CORRECTED), []),
        (notice(PORT, Notice.SLOT_DOWN), [(GPU, "slot_down", True), (OTHER, "slot_down", True)]),
        (notice(GPU, Notice.GPU_LOST), [(GPU, "gpu_lost", True)]),
        (port(up=False), [(NIC, "port_down", False)]),
        (port(up=False, device=""), [(NIC, "port_down", False)]),
        (port(up=False, name="soft/1", device=""), [("soft/1", "port_down", False)]),
        (port(up=False, name="eth0"), [(NIC, "link_down", False)]),
        (port(up=False, name="veth4711", device=""), []),
        (port(up=True), []),
    ],
    ids=lambda value: getattr(value, "text", None) or None,
)
def test_node_device_faults__what_is_reported(fact, expected):
    known = board()
    known.observe(fact)
    assert reported(known) == expected


def test_node_device_faults__the_drivers_branch_decides_what_a_number_means():
    """144 was a rotation of keys in 550, and is an NVLink unit since 560."""
    text = {}
    for driver in ("550.163.01", "580.65.06"):
        known = board(driver)
        known.observe(xid(144, "once"))
        (text[driver],) = (fault.text for fault in known.reported(5 * S))
    assert text["550.163.01"] != text["580.65.06"]
    assert "key" in text["550.163.01"].lower()


@pytest.mark.parametrize(
    ("broken", "well"),
    [
        (port(up=False), port(up=True)),
        (port(up=False), port(up=True, device="")),
        (port(up=False, device=""), port(up=True)),
        (port(up=False, name="eth0"), port(up=True, name="eth0")),
        (notice(NIC, Notice.NIC_FAILED), notice(NIC, Notice.NIC_RECOVERED)),
        (notice(PORT, Notice.SLOT_DOWN), notice(PORT, Notice.SLOT_UP)),
    ],
    ids=["port", "port, by the kernel", "port, by its state", "link", "firmware", "slot"],
)
def test_node_device_faults__what_recovers_is_reported_no_more(broken, well):
    known = board()
    known.observe(broken)
    before = known.version
    known.observe(well)
    assert reported(known) == []
    assert known.version > before


def test_node_device_faults__two_ports_of_one_card():
    known = board()
    known.observe(port(up=False))
    known.observe(port(up=False, name="mlx5_0/2"))
    known.observe(port(up=True, name="mlx5_0/2"))
    (fault,) = known.reported(5 * S)
    assert "mlx5_0/1" in fault.text


def test_node_device_faults__a_port_that_stays_down_is_fatal_to_its_node():
    """Also when no process holds it; a counter that grows meanwhile does not begin the wait anew."""
    known = board()
    known.observe(port(up=False))
    known.observe(replace(port(up=False), boottime_ns=9 * S, text="link_downed +1"))
    known.on_pass(10 * S)
    assert reported(known) == [(NIC, "port_down", False)]
    version = known.version
    known.on_pass(11 * S)
    assert reported(known) == [(NIC, "port_down", True)]
    assert known.version > version
    known.observe(replace(port(up=False), boottime_ns=12 * S))
    assert reported(known) == [(NIC, "port_down", True)]
    known.observe(port(up=True))
    known.observe(replace(port(up=False), boottime_ns=20 * S))
    known.observe(replace(port(up=False, name="eth0"), boottime_ns=1 * S))
    known.on_pass(21 * S)
    assert reported(known) == [(NIC, "port_down", False), (NIC, "link_down", False)]


def test_node_device_faults__the_pods_that_hold_a_device():
    """Of each device that hangs on a port its own; and of a fault that is reported again, those of both times."""
    known = board()
    known.users.held = {GPU: {Pid(7)}}
    gpu, other = (
        fault
        for fault in known.attribution.of_aer(aer(PORT, AerSeverity.FATAL), (Pid(7), Pid(8)), 0)
        if isinstance(fault, AnnouncedFault)
    )
    assert (gpu.holders, other.holders) == (frozenset({Pid(7)}), frozenset())
    known.add(gpu, frozenset({"uid-b"}))
    known.add(other, frozenset())
    known.add(gpu, frozenset({"uid-a", "uid-b"}))
    by_device = {fault.device: fault for fault in known.reported(5 * S)}
    assert by_device[GPU].pods == ("uid-a", "uid-b")
    assert by_device[OTHER].pods == ()
    assert by_device[GPU].age_s == 2.0
    assert PORT in by_device[GPU].text


def test_node_device_faults__a_later_word_on_the_same_fault_keeps_its_pods_and_a_flood_has_an_end():
    known = board()
    known.observe(xid(79, "first"), frozenset({"uid-a"}))
    known.observe(xid(79, "second"))
    (fault,) = known.reported(5 * S)
    assert "second" in fault.text
    assert fault.pods == ("uid-a",)
    for number in range(200):
        known.observe(aer(f"0000:{number:02x}:00.0", AerSeverity.FATAL))
    assert len(known.reported(5 * S)) == 64


def test_devices_of__which_devices_each_pod_has_open():
    topology = Topology(
        (Gpu(GPU, 0, "GPU-1", (), frozenset({"/dev/nvidia0"})), Gpu(OTHER, -1, "", ())),
        (Port("mlx5_0", NIC, (), "/dev/infiniband/uverbs0"), Port("eth0", NIC, (), "")),
    )
    asked = []

    def read(pids, paths):
        asked.append(set(paths))
        held = {Pid(7): {"/dev/nvidia0"}, Pid(8): set(paths), Pid(9): frozenset()}
        return {pid: frozenset(held[pid]) for pid in pids}

    files = OpenFiles()
    files.read_by(read)
    members = {Pid(7): "uid-a", Pid(8): "uid-b", Pid(9): "uid-c"}
    assert devices_of(topology, members, files) == {"uid-a": (GPU,), "uid-b": (GPU, NIC)}
    assert asked == [{"/dev/nvidia0", "/dev/infiniband/uverbs0"}], "one walk for all devices"
    assert devices_of(Topology(), members, files) == {}


APPLICATION_XIDS = (13, 31, 43, 45, 63, 68, 69, 8)


def full_of_harmless() -> NodeDeviceFaults:
    """Eight GPUs, eight kinds of application errors each: a tenant's programs cause them at will."""
    known = board()
    for gpu in range(8):
        for kind, number in enumerate(APPLICATION_XIDS):
            fact = replace(xid(number), device=f"0000:{gpu:02x}:00.0", boottime_ns=(3 + kind) * S)
            known.observe(fact)
    assert len(reported(known)) == 64
    assert not any(fatal for _, _, fatal in reported(known))
    return known


def test_node_device_faults__a_fatal_fault_takes_the_place_of_the_oldest_harmless_one():
    known = full_of_harmless()
    known.observe(xid(79))
    assert (GPU, "xid_79", True) in reported(known)
    assert len(reported(known)) == 64
    assert sum(fault == "xid_13" for _, fault, _ in reported(known)) == 7


def test_node_device_faults__a_harmless_fault_takes_the_place_of_no_other():
    known = full_of_harmless()
    before = reported(known)
    known.observe(xid(31))
    assert reported(known) == before


def test_node_device_faults__a_port_that_is_down_gives_way_last():
    known = board()
    known.observe(port(up=False))
    for number in range(62):
        known.observe(aer(f"0000:{number:02x}:00.0", AerSeverity.FATAL))
    known.observe(xid(31))
    known.observe(xid(79))
    assert (NIC, "port_down", False) in reported(known)
    assert (GPU, "xid_31", False) not in reported(known)
    known.observe(aer(OTHER, AerSeverity.FATAL))
    assert (NIC, "port_down", False) not in reported(known)
    assert (OTHER, "aer_fatal", True) in reported(known)


def test_node_device_faults__a_harmless_event_is_dropped_after_a_day_a_state_or_a_fatal_fault_is_not():
    known = board()
    for fact in (xid(31), xid(79), port(up=False, name="eth0")):
        known.observe(fact)
    known.on_pass(24 * 3600 * S)
    assert len(reported(known)) == 3
    version = known.version
    known.on_pass((24 * 3600 + 3) * S)
    assert reported(known) == [(GPU, "xid_79", True), (NIC, "link_down", False)]
    assert known.version > version


@pytest.mark.parametrize(
    ("fact", "fatal", "unfit"),
    [
        (xid(79), True, True),
        (xid(94), True, False),
        (xid(32), True, False),
        (xid(64), False, True),
        (xid(74), False, True),
        (aer(GPU, AerSeverity.FATAL), True, True),
        (notice(GPU, Notice.GPU_LOST), True, True),
        (notice(PORT, Notice.SLOT_DOWN), True, True),
        (port(up=False), False, False),
    ],
    ids=[
        "xid 79",
        "contained",
        "push buffer",
        "remap failed",
        "nvlink",
        "aer",
        "lost",
        "slot",
        "port",
    ],
)
def test_board__a_lost_job_and_an_unfit_device_are_two_things(fact, fatal, unfit):
    known = board()
    known.observe(fact)
    assert {(fault.fatal, fault.unfit) for fault in known.reported(5 * S)} == {(fatal, unfit)}


def test_board__a_port_that_stays_down_is_unfit():
    known = board()
    known.observe(port(up=False))
    known.on_pass(11 * S)
    known.observe(replace(port(up=False), boottime_ns=12 * S))
    assert [fault.unfit for fault in known.reported(13 * S)] == [True]


def test_mend__faults_up_to_the_inspection_that_saw_them_are_over() -> None:
    known = board()
    known.observe(xid(79))
    known.observe(replace(xid(63), boottime_ns=S))
    known.observe(aer(OTHER, AerSeverity.FATAL))
    known.mend(GPU, 2 * S)
    assert (GPU, "xid_79", True) in reported(known), "it came after that inspection"
    known.mend(GPU, 3 * S)
    assert reported(known) == [(GPU, "xid_63", False), (OTHER, "aer_fatal", True)]


def test_node_device_faults__a_fault_names_what_whoever_replaces_the_device_asks_for(
    tmp_path: Path,
) -> None:
    slots = tmp_path / "sys/bus/pci/slots/4"
    slots.mkdir(parents=True)
    (slots / "address").write_text("0000:5c:00\n")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir()
    (devices / GPU).symlink_to(f"../../../devices/pci0000:5c/{PORT}/{GPU}")
    known = DeviceIdentities(tmp_path, lambda _: "GPU-0", {GPU: "165"}.get)  # type: ignore[arg-type]
    faults = NodeDeviceFaults(lambda device: [device], known.of)
    faults.add(AnnouncedFault(3 * S, GPU, "Xid 79", "fell off", True, True), frozenset())
    (found,) = faults.reported(5 * S)
    assert (found.uuid, found.serial, found.slot) == ("GPU-0", "165", "4")
    assert slot_of(tmp_path, OTHER) == ""
