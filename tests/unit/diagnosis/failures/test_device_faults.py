"""Faults of devices that a job uses: the finding, its device, and the rank that is named."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.devices import fault_rules
from kcover_ebpf.devices.attribution import Attribution
from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.devices.device_users import DeviceUsers
from kcover_ebpf.devices.inventory import topology
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.failures.device_faults import DeviceFaults
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.devices import (
    AnnouncedFault,
    DeviceFault,
    PortChange,
    Rung,
    XidReported,
)
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.rank_report import verdict_of
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.model.verdict import Cause, Culprit, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.diagnosis import HARMLESS_NS
from tests.unit.support.report_builders import case, report
from tests.unit.support.report_builders import rank as ranked
from tests.unit.support.scripted_job import Proc, Stage, trained
from tests.unit.support.seen_verdicts import only_fault

NIC = "0000:9a:00.0"
GPU = "0000:5d:00.0"


def xid(number: int, text: str = "", **more) -> XidReported:
    values = {"rung": Rung.KPROBE, "confirmed": True, **more}
    return XidReported(5, GPU, number, text, **values)


def fault(at_ns: int, *, ends_job: bool = True, pid: int = 7) -> DeviceFault:
    return DeviceFault(at_ns, Pid(pid), GPU, "Xid 79", f"Xid 79 at {at_ns}", ends_job)


def view(pid: int) -> ProcessHistory:
    made = ProcessHistory(Pid(pid), 0)
    made.seen = ProcessSeen(0, Pid(pid), Pid(1), "python3", ("python3",))
    return made


def test_device_faults__a_device_fault_is_a_finding_with_its_device():
    found = DeviceFaults()
    views = {Pid(7): view(7), Pid(8): view(8)}
    found.observe(fault(1, ends_job=False))
    assert found.judge(views, stalled=True) is None
    found.observe(fault(2))
    found.observe(fault(3, pid=99))
    found.observe(fault(11 * 10**9))  # much later: another fault
    finding = found.judge(views, stalled=True)
    assert finding is not None
    assert (finding.kind, finding.cause) == (VerdictKind.DEVICE_FAULT, Cause.DEVICE)
    assert finding.culprit is not None
    assert (finding.pid, finding.culprit.device, finding.since_ns) == (7, GPU, 2)
    assert finding.victims == (8,)
    assert finding.evidence[0].kind is EvidenceKind.EVENT
    assert [evidence.text for evidence in finding.evidence] == [
        f"Xid 79 at {at}" for at in (2, 1, 3)
    ]


def test_device_faults__a_fault_of_a_process_outside_the_job_is_none():
    found = DeviceFaults()
    found.observe(fault(2, pid=99))
    assert found.judge({Pid(7): view(7)}, stalled=True) is None


def test_device_faults__a_fault_that_the_job_outlived_is_forgotten():
    found = DeviceFaults()
    found.observe(fault(2))
    found.outlive(1 + HARMLESS_NS, silent=False, stalled=False)
    assert found.judge({Pid(7): view(7)}, stalled=True) is not None
    found.outlive(2 + HARMLESS_NS, silent=True, stalled=True)
    assert found.judge({Pid(7): view(7)}, stalled=True) is not None
    found.outlive(2 + HARMLESS_NS, silent=False, stalled=False)
    assert found.judge({Pid(7): view(7)}, stalled=True) is None


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
    ("report", "concerned"),
    [
        (xid(43, pid=Pid(9), process="python3"), set()),
        (xid(94, "Contained: x. RST: No", pid=Pid(9), process="python3"), set()),
        (xid(43, pid=Pid(7), process="python3"), {7}),
        (xid(43), {7, 8}),
        (xid(43, pid=Pid(9), process="nvidia-cuda-mps"), {7, 8}),
        (xid(79, pid=Pid(9), process="python3"), {7, 8}),
    ],
    ids=["its own", "contained", "ours", "unnamed", "mps", "the whole gpu"],
)
def test_attribution__an_error_of_a_neighbour_on_the_same_gpu_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: XidReported, concerned: set[int]
) -> None:
    whose = DeviceUsers(tmp_path)
    monkeypatch.setattr(whose, "of", lambda device, members, *_: set(members))
    fault, *named = Attribution(whose, shipped, 0).of_xid(report, {Pid(7), Pid(8)}, 0, None)
    assert isinstance(fault, AnnouncedFault), "the node's, whoever is concerned"
    assert fault.holders == concerned
    assert named == fault.of_holders


@pytest.mark.parametrize(
    ("local", "changes", "device"),
    [
        ("10.0.0.1", [False], "0000:9a:00.0"),
        ("10.0.0.1", [False, True], None),
        ("10.9.9.9", [False], None),
        ("10.0.0.1", [], None),
    ],
    ids=["is down", "is up again", "is another port", "was always up"],
)
def test_device_faults__a_lost_link_whose_port(local, changes, device):
    known = DeviceFaults()
    for up in changes:
        known.observe(PortChange(5, "eth0", "0000:9a:00.0", up, "down", ("10.0.0.1",)))
    found = known.located(*lost_link(local))
    assert found.culprit == (Culprit(device=device) if device else None)
    assert [evidence.kind for evidence in found.evidence] == (
        [EvidenceKind.EVENT] if device else []
    )


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
        "is up again",
        "is reported twice",
    ],
)
def test_topology__an_rdma_port_that_is_down_and(tmp_path, changes, waits_s, lost):
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
            node = [] if up else [False]
            assert [item.ends_job for item in reported] == [*node, False]
        found = concern.of_time(members, waits_s * 1_000_000_000)
        assert [item.ends_job and item.if_stalled for item in found] == lost * 2
        assert concern.of_time(members, waits_s * 1_000_000_000) == []


@pytest.mark.parametrize(
    ("holders", "named"),
    [((106,), 6), (tuple(range(100, 108)), None), ((106, 206), 6)],
    ids=["one rank", "all eight", "one rank and its loader"],
)
def test_of_xid__a_gpu_that_falls_off_the_bus_is_named_and_its_rank_if_no_other_holds_it(
    holders, named
):
    stage = Stage(world=8)
    stage.add(Proc(206, ppid=106))
    stage.run(30)
    meaning = fault_rules.of_xid(xid(79, "GPU has fallen off the bus."), shipped())
    assert meaning is not None
    fault = replace(meaning.fault, holders=frozenset(map(Pid, holders)))
    for device_fault in fault.of_holders:
        stage.feed(replace(device_fault, boottime_ns=stage.now_ns))
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


def announce(stage: Stage, rank: int, text: str) -> None:
    """An error of the program on its GPU, which ends no other process."""
    pid = Pid(stage.rank(rank).pid)
    stage.feed(DeviceFault(stage.now_ns, pid, GPU, "Xid 31", text, ends_job=False))


def test_device_faults__an_error_of_the_program_on_its_gpu_explains_its_exit() -> None:
    stage = trained()
    announce(stage, 2, "too long ago")
    stage.run(61)
    announce(stage, 1, "of another rank")
    for text in ("first", "first", "second", "third", "fourth"):
        announce(stage, 2, text)
    stage.run(2)
    stage.exit(stage.rank(2), 1)
    announce(stage, 2, "while it was ended")
    stage.run(3)
    verdict = only_fault(stage)
    assert verdict.cause is Cause.EXITED
    said = [evidence.text for evidence in verdict.evidence if evidence.kind is EvidenceKind.EVENT]
    assert said[1:] == ["first", "second", "third"]
