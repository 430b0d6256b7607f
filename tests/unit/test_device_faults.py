"""Names and counts of PCIe errors, who holds a device, and what a report means for the holders."""

import os
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.cluster.gang_judge import merge
from kcover_ebpf.cluster.rank_report import verdict_of
from kcover_ebpf.diagnosis.device_faults import DeviceFaults
from kcover_ebpf.diagnosis.process import ProcessHistory
from kcover_ebpf.diagnosis.snapshot import Finding
from kcover_ebpf.diagnosis.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    AerTotal,
    CudaContext,
    DeviceFault,
    DeviceHeld,
    DeviceNotice,
    Notice,
    PortChange,
    Rung,
    XidReported,
)
from kcover_ebpf.facts.host import Inspection, ProcessSeen, WaitedFile
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.hardware import fault_rules, topology
from kcover_ebpf.hardware.aer import AerCounter, names
from kcover_ebpf.hardware.attribution import Attribution
from kcover_ebpf.hardware.catalog.files import shipped
from kcover_ebpf.hardware.device_users import DeviceUsers
from kcover_ebpf.hardware.open_holders import KEEP_NS, OpenHolders, open_by
from kcover_ebpf.hardware.stuck_ioctl import StuckCalls
from kcover_ebpf.ids import Inode, Pid, Tid
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.diagnosis import HARMLESS_NS
from tests.unit.report_builders import case, report
from tests.unit.report_builders import rank as ranked
from tests.unit.scripted_job import Proc, Stage

NIC = "0000:9a:00.0"
GPU, UUID = "0000:5d:00.0", "GPU-00112233-4455-6677-8899-aabbccddeeff"
CORRECTED, NONFATAL, FATAL = AerSeverity.CORRECTED, AerSeverity.NONFATAL, AerSeverity.FATAL


def xid(number: int, text: str = "", **more) -> XidReported:
    values = {"rung": Rung.KPROBE, "confirmed": True, **more}
    return XidReported(5, GPU, number, text, **values)


@pytest.mark.parametrize(
    ("severity", "status", "expected"),
    [
        (CORRECTED, 0x1, ("Receiver Error",)),
        (CORRECTED, 0x1000, ("Replay Timer Timeout",)),
        (FATAL, 0x1000, ("Poisoned TLP",)),
        (NONFATAL, 0x104000, ("Completion Timeout", "Unsupported Request")),
        (FATAL, 0x20, ("Surprise Down Error",)),
        (FATAL, 0, ()),
        (CORRECTED, 0x2, ("bit 1",)),
    ],
)
def test_error_names(severity, status, expected):
    assert names(severity, status) == expected


@given(st.lists(st.integers(0, 50), max_size=30), st.data())
def test_no_error_is_lost_or_counted_twice(bursts, data):
    """Records are sent now and then, the map may be read any time."""
    counter, total, reported = AerCounter(), 0, 0
    for burst in bursts:
        total += burst
        fact = AerTotal(0, GPU, CORRECTED, 1, total)
        if data.draw(st.booleans()) and total:
            reported += error.count if (error := counter.on_total(fact)) else 0
        if data.draw(st.booleans()):
            reported += sum(error.count for error in counter.on_inspection([fact]))
    reported += sum(
        error.count for error in counter.on_inspection([AerTotal(0, GPU, CORRECTED, 1, total)])
    )
    assert reported == total


def test_uncounted_errors_are_reported_one_by_one():
    counter = AerCounter()
    fact = AerTotal(0, GPU, FATAL, 0x20, 0)
    for _ in range(2):
        error = counter.on_total(fact)
        assert error is not None
        assert error.count == 1


@pytest.mark.parametrize(
    ("report", "pids", "ends_job"),
    [
        (xid(79), {10, 11}, True),
        (xid(79, pid=Pid(11)), {10, 11}, True),
        (xid(31, pid=Pid(11)), {11}, False),
        (xid(31), {10, 11}, False),
        (xid(94, "Contained: x. RST: No, D-RST: No", pid=Pid(11)), {11}, True),
        (xid(94, "Contained: x. RST: Yes, D-RST: No", pid=Pid(11)), {10, 11}, True),
        (xid(95, pid=Pid(11), gpu_instance=2), {11}, True),
        (xid(63), {10, 11}, False),
        (xid(999), {10, 11}, False),
        (xid(12020, "Fatal, Link 3 x"), {10, 11}, True),
        (xid(20034, "Fatal, Link 3 x"), {10, 11}, False),
    ],
)
def test_whom_an_xid_concerns(report, pids, ends_job):
    found = fault_rules.of_xid(report, {Pid(10), Pid(11)}, shipped())
    assert {fault.pid for fault in found} == pids
    assert {fault.ends_job for fault in found} == {ends_job}
    assert all(GPU in fault.text for fault in found)


def test_what_could_be_forged_concerns_nobody():
    assert fault_rules.of_xid(xid(79, confirmed=False), {Pid(10)}, shipped()) == []


def aer(severity: AerSeverity, device: str = GPU) -> AerError:
    return AerError(5, device, severity, 0x20, names(severity, 0x20), 1)


def test_whom_a_pcie_error_concerns():
    assert fault_rules.of_aer(aer(CORRECTED), {Pid(1)}, GPU) == []
    (reported,) = fault_rules.of_aer(aer(NONFATAL), {Pid(1)}, GPU)
    assert not reported.ends_job
    (reported,) = fault_rules.of_aer(aer(FATAL, "0000:5c:00.0"), {Pid(1)}, GPU)
    assert reported.ends_job
    assert reported.device == GPU
    assert reported.text.startswith("PCIe fatal error of port 0000:5c:00.0 above 0000:5d:00.0")


def test_whom_a_notice_concerns():
    lost = DeviceNotice(5, GPU, Notice.GPU_LOST, "gone")
    assert fault_rules.of_notice(lost, {Pid(1)}, GPU)[0].ends_job
    assert fault_rules.of_notice(DeviceNotice(5, GPU, Notice.SLOT_UP, "x"), {Pid(1)}, GPU) == []
    for notice in (Notice.NIC_TIMEOUT, Notice.NIC_HEALTH):
        late = DeviceNotice(5, GPU, notice, "x")
        assert not fault_rules.of_notice(late, {Pid(1)}, GPU)[0].ends_job


def held(pid: int, file: int, at_ns: int = 0, *, opened: bool = True, minor: int = 0) -> DeviceHeld:
    return DeviceHeld(at_ns, Pid(pid), minor, file, opened, "x")


def test_holders():
    holders = OpenHolders()
    holders.on_opened(held(1, 100))
    holders.on_opened(held(2, 200, minor=255))
    assert holders.of(0, UUID, 1) == {1}
    assert holders.of(1, UUID, 1) == set()
    # the last reference is dropped by whoever has it, also by another process
    holders.on_opened(held(9, 100, at_ns=5, opened=False))
    assert holders.of(0, UUID, KEEP_NS) == {1}
    assert holders.of(0, UUID, KEEP_NS + 6) == set()


def test_compute_contexts():
    holders = OpenHolders()
    holders.on_context(CudaContext(0, Pid(4), UUID, True, "x"))
    assert holders.of(-1, UUID, 0) == {4}
    holders.on_context(CudaContext(0, Pid(4), UUID, False, "x"))
    assert holders.of(-1, UUID, 0) == set()
    holders.on_context(CudaContext(0, Pid(4), UUID, True, "x"))
    holders.on_exit(Pid(4))
    assert holders.of(-1, UUID, 0) == set()


def test_open_files(tmp_path):
    for pid, target in ((1, "/dev/nvidia0"), (2, "/dev/nvidia1"), (3, "/dev/null")):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / "5").symlink_to(target)
    pids = {Pid(1), Pid(2), Pid(3), Pid(99)}
    assert open_by(pids, {"/dev/nvidia0"}, tmp_path) == {1}


def test_topology(tmp_path):
    info = tmp_path / "proc/driver/nvidia/gpus/0000:5D:00.0/information"
    info.parent.mkdir(parents=True)
    info.write_text(f"Model: \t\t X\nGPU UUID: \t {UUID}\nDevice Minor: \t 3\n")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / GPU).symlink_to(f"../../../devices/pci0000:5c/0000:5c:00.0/{GPU}")
    real = tmp_path / "sys/devices/pci0000:5c/0000:5c:00.0" / GPU
    real.mkdir(parents=True)
    assert not topology.has_gpu(tmp_path)
    (real / "vendor").write_text("0x10de\n")
    assert topology.has_gpu(tmp_path)
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


def test_rdma_devices_and_their_files(tmp_path):
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


def fault(at_ns: int, *, ends_job: bool = True, pid: int = 7) -> DeviceFault:
    return DeviceFault(at_ns, Pid(pid), GPU, "Xid 79", f"Xid 79 at {at_ns}", ends_job)


def view(pid: int) -> ProcessHistory:
    made = ProcessHistory(Pid(pid), 0)
    made.seen = ProcessSeen(0, Pid(pid), Pid(1), "python3", ("python3",))
    return made


def test_a_device_fault_is_a_finding_with_its_device():
    found = DeviceFaults()
    views = {Pid(7): view(7), Pid(8): view(8)}
    found.observe(fault(1, ends_job=False))
    assert found.judge(views, stalled=True) is None
    found.observe(fault(2))
    found.observe(fault(3, pid=99))
    found.observe(fault(11 * 10**9))  # much later: another trouble
    finding = found.judge(views, stalled=True)
    assert finding is not None
    assert (finding.kind, finding.cause) == (VerdictKind.DEVICE_FAULT, Cause.DEVICE)
    assert (finding.culprit, finding.device, finding.since_ns) == (7, GPU, 2)
    assert finding.victims == (8,)
    assert finding.evidence[0].kind is EvidenceKind.EVENT
    assert [each.text for each in finding.evidence] == [f"Xid 79 at {at}" for at in (2, 1, 3)]


def test_a_fault_of_a_process_outside_the_job_is_none():
    found = DeviceFaults()
    found.observe(fault(2, pid=99))
    assert found.judge({Pid(7): view(7)}, stalled=True) is None


def test_a_fault_that_the_job_outlived_is_forgotten():
    found = DeviceFaults()
    found.observe(fault(2))
    found.outlive(1 + HARMLESS_NS, silent=False, stalled=False)
    assert found.judge({Pid(7): view(7)}, stalled=True) is not None
    found.outlive(2 + HARMLESS_NS, silent=True, stalled=True)
    assert found.judge({Pid(7): view(7)}, stalled=True) is not None
    found.outlive(2 + HARMLESS_NS, silent=False, stalled=False)
    assert found.judge({Pid(7): view(7)}, stalled=True) is None


def look(at_s: float, *targets: str) -> Inspection:
    files = tuple(WaitedFile(3, "device", each, Inode(0), "", "") for each in targets)
    at_ns = int(at_s * 1e9)
    return Inspection(at_ns, Pid(7), Tid(8), "rm_wait", None, False, files, (), None, ())


@pytest.mark.parametrize(
    ("looks", "in_d", "reported"),
    [
        ([look(0, "/dev/nvidia0"), look(5, "/dev/nvidia0")], True, [GPU]),
        ([look(t, "/dev/nvidia0") for t in (0, 2, 5, 6, 9)], True, [GPU]),
        ([look(0, "/dev/nvidia0"), look(3, "/dev/nvidia0")], True, []),
        ([look(0, "/dev/nvidia0"), look(5, "/dev/nvidia0")], False, []),
        ([look(0, "/dev/nvidia0"), look(3), look(5, "/dev/nvidia0")], True, []),
        ([look(0, "/mnt/data"), look(9, "/mnt/data")], True, []),
        ([look(0, "/dev/nvidiactl"), look(5, "/dev/nvidiactl")], True, [GPU]),
        ([look(0, "/dev/nvidia5"), look(5, "/dev/nvidia5")], True, [""]),
    ],
    ids=[
        "a call that lasts",
        "is reported once",
        "a call that may end",
        "a call that a signal ends",
        "a call that ended between",
        "a file",
        "the control file means the GPU that is held",
        "a GPU that nobody knows",
    ],
)
def test_driver_calls_that_hang(looks, in_d, reported, tmp_path):
    whose = DeviceUsers(tmp_path)
    whose.topology = topology.Topology((topology.Gpu(GPU, 0, UUID, (GPU,)),))
    if reported != [""]:
        whose.observe(DeviceHeld(0, Pid(7), 0, 1, True, "x"))
    calls = StuckCalls(whose, lambda pid, tid: in_d)
    found = [call for each in looks if (call := calls.observe(each)) is not None]
    assert [call.device for call in found] == reported
    assert all(call.uuid == (UUID if call.device else "") for call in found)


def test_the_users_of_a_mig_instance(tmp_path):
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


def lost_link(local: str) -> tuple[Finding, dict[Pid, ProcessHistory]]:
    """A lost link, and the rank with a connection that begins at this address."""
    view = ProcessHistory(Pid(7), 0)
    sample = SocketSample(
        1, Pid(7), 3, Inode(1), "ESTABLISHED", (local, 9), ("10.0.0.2", 9),
        *(0,) * 9,
    )  # fmt: skip
    view.on_socket(sample)
    return Finding(VerdictKind.LOST_LINK, Cause.LINK, 5), {Pid(7): view}


@pytest.mark.parametrize(
    ("local", "changes", "device"),
    [
        ("10.0.0.1", [False], "0000:9a:00.0"),
        ("10.0.0.1", [False, True], None),
        ("10.9.9.9", [False], None),
        ("10.0.0.1", [], None),
    ],
    ids=["is down", "came back", "is another port", "was always up"],
)
def test_a_lost_link_whose_port(local, changes, device):
    known = DeviceFaults()
    for up in changes:
        known.observe(PortChange(5, "eth0", "0000:9a:00.0", up, "down", ("10.0.0.1",)))
    found = known.located(*lost_link(local))
    assert found.device == device
    assert [each.kind for each in found.evidence] == ([EvidenceKind.EVENT] if device else [])


@pytest.mark.parametrize(
    ("changes", "waits_s", "lost"),
    [
        ([False], 61, [True]),
        ([False], 5, []),
        ([False], 12, []),
        ([False], 40, []),
        ([False, True], 61, []),
        ([False, False], 61, [True]),
    ],
    ids=[
        "stays",
        "flaps",
        "retrains",
        "has its switch restarted",
        "came back",
        "is reported twice",
    ],
)
def test_an_rdma_port_that_is_down_and(tmp_path, changes, waits_s, lost):
    node = tmp_path / "uverbs0"
    node.touch()
    whose = DeviceUsers(tmp_path)
    whose.topology = topology.Topology((), (topology.Port("mlx5_0", NIC, (NIC,), str(node)),))
    concern = Attribution(whose, shipped, int(Policy().port_patience_s * 1e9))
    with node.open() as held:
        assert held.fileno() > 0
        members = {Pid(os.getpid())}
        for up in changes:
            reported = concern.of_port(PortChange(0, "mlx5_0/1", NIC, up, "port down"), members)
            assert [each.ends_job for each in reported] == [False]
        found = concern.of_time(members, waits_s * 1_000_000_000)
        assert [each.ends_job and each.if_stalled for each in found] == lost
        assert concern.of_time(members, waits_s * 1_000_000_000) == []


@pytest.mark.parametrize(
    ("holders", "named"),
    [((106,), 6), (tuple(range(100, 108)), None), ((106, 206), 6)],
    ids=["one rank", "all eight", "one rank and its loader"],
)
def test_a_gpu_that_falls_off_the_bus_is_named_and_its_rank_if_no_other_holds_it(holders, named):
    stage = Stage(world=8)
    stage.add(Proc(206, ppid=106))
    stage.run(30)
    faults_of_all = fault_rules.of_xid(xid(79, "GPU has fallen off the bus."), holders, shipped())
    for each in faults_of_all:
        stage.feed(replace(each, boottime_ns=stage.now_ns))
    stage.run(1)
    verdict = stage.tracker.latest
    assert verdict is not None
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.culprit.device) == (VerdictKind.DEVICE_FAULT, GPU)
    assert (verdict.culprit.rank, verdict.culprit.host) == (named, "host")
    assert (named is None) == ("8 processes of the job have" in verdict.evidence[-1].text)
    reported = verdict_of(verdict, "a", verdict.time_s, {}, {})
    merged = merge(case(report("a", ranked(0), suspicious=False, verdict=reported)))
    assert merged.culprit is not None
    assert (merged.culprit.device, merged.culprit.node) == (GPU, "a")


def test_a_driver_that_does_not_answer_is_waited_for_once(tmp_path, monkeypatch):
    """/proc/driver/nvidia takes locks of the driver, which may hang just when a job does."""
    over = threading.Event()
    found = topology.Topology((topology.Gpu(GPU, 0, UUID, (GPU,)),))
    monkeypatch.setattr("kcover_ebpf.hardware.device_users._FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(
        "kcover_ebpf.hardware.device_users.topology.read",
        lambda _: found if over.wait(30) else None,
    )
    whose = DeviceUsers(tmp_path)
    began_s = time.monotonic()
    for _ in range(9):
        whose.learn()
        whose.refresh()
    assert time.monotonic() - began_s < 0.5
    assert whose.topology == topology.Topology()
    over.set()
    time.sleep(0.05)
    whose.refresh()
    assert whose.topology == found
