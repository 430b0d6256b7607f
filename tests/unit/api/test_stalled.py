"""A job that is worth a reading has not stalled yet: only the second is reported, and costs others anything."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.agent.node_loop import GangWatch
from kcover_ebpf.agent.pod_registry import LocalGang
from kcover_ebpf.agent.reports.lease_writer import LeaseWriter
from kcover_ebpf.agent.reports.report_builder import Identity, ReportBuilder
from kcover_ebpf.agent.reports.report_cache import ReportCache
from kcover_ebpf.agent.reports.report_sender import ReportSender
from kcover_ebpf.api.agent_lease import AgentLease, lease_of
from kcover_ebpf.api.fault_report import FaultReport, ReportedDeviceFault, report_of
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.log_report import ContainerLog, LogFinding
from kcover_ebpf.devices.fault_rules import of_port
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.devices import DeviceFault, PortChange
from kcover_ebpf.facts.kernel import SampleRequest
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.settings import Policy, Settings
from kcover_ebpf.watching.job_watch import JobWatch
from tests.unit.support.report_builders import SELECTOR, pod
from tests.unit.support.scripted_job import Stage

NIC = "0000:9a:00.0"

GANG = Gang(GangId.of("ns", SELECTOR), "j", "Job")
FAULT = ReportedDeviceFault("0000:5d:00.0", "xid_31", "MMU fault", age_s=1.0)


def all_become(stage: Stage, mode: str) -> None:
    for proc in stage.procs.values():
        stage.become(proc, mode)


def shares(stage: Stage, seconds: int) -> tuple[float, float]:
    """Shares of the passes in which the job was suspicious, and had stalled."""
    passes = suspicious = stalled = 0
    end_ns = stage.now_ns + seconds * NS
    while stage.now_ns < end_ns:
        stage.one_pass(NS // 4 if stage.job.urgent else NS)
        passes += 1
        suspicious += stage.job.attention.suspicious
        stalled += stage.job.attention.stalled
    return suspicious / passes, stalled / passes


def send(stage: Stage) -> None:
    for proc in stage.procs.values():
        proc.sent += 100_000
        proc.last_send_ns = stage.now_ns


def test_stalled__ranks_that_wait_are_read_first_and_stalled_later():
    stage = Stage()
    stage.run(30)
    all_become(stage, "futex")
    stage.run(1.2)
    assert (stage.job.attention.suspicious, stage.job.attention.stalled) == (True, False)
    stage.run(2)
    assert (stage.job.attention.suspicious, stage.job.attention.stalled) == (True, True)


@pytest.mark.parametrize("connected", [True, False])
def test_stalled__ranks_that_burn_a_cpu_for_hours_are_read_and_have_not_stalled(connected):
    stage = Stage(connected=connected)
    stage.run(30)
    all_become(stage, "run")
    stage.run(60)
    assert shares(stage, 1200) == (1.0, 0.0)


@pytest.mark.parametrize("mode", ["yield", "spin"])
def test_stalled__ranks_that_burn_a_cpu_and_are_known_to_wait_have_stalled(mode):
    stage = Stage(connected=False)
    stage.run(30)
    all_become(stage, mode)
    stage.run(120)
    assert stage.job.attention.stalled


@pytest.mark.parametrize("mode", ["futex", "read", "write", "stopped"])
def test_stalled__one_rank_that_sleeps_among_others_that_burn_a_cpu_has_stalled_the_job(mode):
    stage = Stage(connected=False)
    stage.run(30)
    all_become(stage, "run")
    # longer than any burn that is learned as a step: its end counts as progress
    stage.run(200)
    assert not stage.job.attention.stalled
    stage.become(stage.rank(2), mode)
    stage.run(12)
    assert stage.job.attention.stalled


def test_stalled__bytes_are_the_clock_of_ranks_that_burn_a_cpu():
    stage = Stage()
    stage.run(30)
    all_become(stage, "run")
    for step in range(40):
        for _ in range(5):
            stage.one_pass(NS)
            assert step < 2 or not stage.job.attention.stalled
        send(stage)
    silent_s = 0
    while not stage.job.attention.stalled:
        stage.one_pass(NS)
        silent_s += 1
    assert 5 <= silent_s <= 9  # steps of 5 s
    stage.run(600)
    assert stage.job.attention.stalled


def test_stalled__a_job_that_burns_from_its_first_step_on_has_recovered_within_30_s():
    stage = Stage(connected=False)
    stage.run(10)  # what it loads moves its ranks
    all_become(stage, "run")
    first_ns, recovered_ns = stage.now_ns, None
    for _ in range(600):
        stage.one_pass(NS)
        if not stage.job.pace.trained or stage.job.attention.stalled:
            recovered_ns = None
        elif recovered_ns is None:
            recovered_ns = stage.now_ns
    assert recovered_ns is not None
    assert recovered_ns - first_ns <= 30 * NS


@pytest.mark.parametrize(("minutes", "longest_s"), [(2, 130.0), (5, 10.0)])
def test_stalled__a_burn_is_learned_as_a_step_unless_it_is_longer_than_any(minutes, longest_s):
    stage = Stage(connected=False)
    stage.run(60)
    all_become(stage, "run")
    stage.run(60 * minutes)
    all_become(stage, "train")
    stage.run(10)
    assert longest_s / 2 < stage.job.pace.longest_s + 5 <= longest_s
    all_become(stage, "futex")
    stage.run(1.5 * longest_s + 10)
    assert stage.job.attention.stalled


def down(stage: Stage, number: int = 0) -> DeviceFault:
    """What is known of a port of a rank's card that did not come up again."""
    return DeviceFault(
        stage.now_ns, Pid(100 + number), NIC, "port down", "RDMA port mlx5_0/1 is down",
        ends_job=True, if_stalled=True,
    )  # fmt: skip


def test_stalled__a_port_that_stays_down_ends_no_job_that_continues():
    stage = Stage()
    stage.run(30)
    stage.feed(down(stage))
    stage.run(120)
    all_become(stage, "futex")  # another fault, long after
    stage.run(10)
    assert VerdictKind.DEVICE_FAULT not in {verdict.kind for verdict in stage.verdicts}


def test_stalled__a_port_that_stays_down_ends_a_job_that_has_stalled():
    stage = Stage()
    stage.run(30)
    all_become(stage, "futex")
    stage.run(5)
    stage.feed(down(stage))
    stage.run(2)
    assert stage.verdicts[-1].kind is VerdictKind.DEVICE_FAULT


def test_stalled__a_port_that_stays_down_ends_no_job_that_still_starts():
    """It imports its libraries, on a slow disk: no bytes from rank to rank yet, and no rank that waits for the card."""
    stage = Stage()
    all_become(stage, "futex")
    stage.run(30)
    stage.feed(down(stage))
    stage.run(30)
    assert stage.job.attention.stalled
    assert VerdictKind.DEVICE_FAULT not in {verdict.kind for verdict in stage.verdicts}


def test_of_port__a_port_that_is_back_ends_no_job():
    stage = Stage()
    stage.run(30)
    stage.feed(down(stage))
    back = PortChange(stage.now_ns, "mlx5_0/1", NIC, True, "port ACTIVE")
    for fault in replace(of_port(back, NIC), holders=frozenset({Pid(100)})).of_holders:
        stage.feed(fault)
    all_become(stage, "futex")
    stage.run(10)
    assert VerdictKind.DEVICE_FAULT not in {verdict.kind for verdict in stage.verdicts}


class FakeQuietSampler:
    """The host of a watch that has nothing to sample."""

    def watch(self, pid: int, owner_id: int = 0) -> None: ...

    def request(self, pid: int, wanted_request: SampleRequest) -> None: ...


def watched(stage: Stage) -> JobWatch:
    """The watch of an agent over the job on the stage."""
    tracker = Tracker("job", "host")
    watch = JobWatch(FakeQuietSampler(), tracker, stage.job.table, Settings(), whole=False)  # type: ignore[arg-type]
    watch._judging.job = stage.job
    return watch


@pytest.mark.parametrize(("mode", "asks"), [("run", False), ("spin", True)])
def test_job_watch__nccl_is_asked_about_a_stall_and_not_about_ranks_that_burn_a_cpu(
    mode, asks, monkeypatch
):
    asked = []

    class FakeRasWatch:
        def __init__(self, source: object = None) -> None:
            """The source is not asked."""

        def tick(self, asks: bool, *_: object) -> list[object]:
            asked.append(asks)
            return []

    monkeypatch.setattr("kcover_ebpf.collectives.ras.watch.RasWatch", FakeRasWatch)
    stage = Stage()
    stage.run(30)
    all_become(stage, mode)
    stage.run(60)
    watch = watched(stage)
    for _ in range(10):
        stage.one_pass(NS)
        watch.ask_collectives()
    assert stage.job.attention.suspicious
    assert set(asked) == ({True} if asks else set())


def sent(
    stage: Stage,
    tmp_path: Path,
    seconds: int,
    renewals: list[AgentLease | None] | None = None,
    logs: tuple[ContainerLog, ...] = (),
) -> list[FaultReport]:
    """The reports that reach the API server while the job continues like this; a pass is a second.

    `renewals` receives what the agent's Lease said meanwhile.
    """
    gone: list[FaultReport] = []
    leases = [] if renewals is None else renewals

    class FakeReportApi:
        def apply(self, path: str, body: dict[str, Any], manager: str) -> object:
            gone.append(report_of(body))
            return body

        def merge_patch(self, path: str, body: dict[str, Any]) -> object:
            leases.append(lease_of(body))
            return body

        def list(self, path: str, query: object) -> dict[str, Any]:
            return {}

    clock, api = [1000.0], FakeReportApi()
    lease = LeaseWriter(api, "kcover", "a", print)  # type: ignore[arg-type]
    reporter = ReportSender(api, lease, lambda *_: (), print)  # type: ignore[arg-type]
    builder = ReportBuilder(Identity("a", "kcover"), reporter, ReportCache(tmp_path), lambda: True)
    builder.logs = lambda *_: logs
    pods = [pod(number) for number in range(len(stage.procs))]
    watch = GangWatch(LocalGang(GANG, tuple(pods), Policy()), watched(stage))
    watch.pods = {Pid(pid): pods[index].uid for index, pid in enumerate(stage.procs)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kcover_ebpf.agent.reports.report_sender.time.monotonic", lambda: clock[0])
        patch.setattr("kcover_ebpf.agent.reports.report_builder.time.time", lambda: 1e9 + clock[0])
        for _ in range(seconds):
            stage.one_pass(NS)
            clock[0] += 1.0
            builder.make([watch], (FAULT,))
            reporter.flush()
    assert (builder.evidence_of(GANG) or gone[0]).devices == (FAULT,), "an archive has them too"
    return [report for report in gone if report.job is not None]


def test_report_builder__evidence_has_the_ranks_also_of_a_node_that_has_not_stalled(
    tmp_path: Path,
) -> None:
    stage = Stage(connected=True)
    stage.run(30)
    builder = ReportBuilder(Identity("a", "kcover"), Any, ReportCache(tmp_path), lambda: True)  # type: ignore[arg-type]
    pods = tuple(pod(number) for number in range(len(stage.procs)))
    watch = GangWatch(LocalGang(GANG, pods, Policy()), watched(stage))
    watch.pods = {Pid(pid): pods[index].uid for index, pid in enumerate(stage.procs)}
    builder.last = {GANG: FaultReport("a", 1.0, 1)}
    with ThreadPoolExecutor(1) as pool:
        evidence = pool.submit(builder.evidence_of, GANG)
        while not evidence.done():
            builder._answer([watch])
    report = evidence.result()
    assert report is not None
    assert {rank.pod_uid for rank in report.ranks} == {pod_.uid for pod_ in pods}


@pytest.mark.parametrize(
    ("mode", "renewed", "stalled", "has_ranks"),
    [
        ("run", range(3, 6), False, True),
        ("train", range(3, 6), False, False),
        ("futex", range(30, 40), True, True),
    ],
)
def test_report_builder__a_stall_is_reported_once_and_confirmed_often(
    tmp_path, mode, renewed, stalled, has_ranks
):
    stage = Stage(connected=mode != "run")
    stage.run(30)
    all_become(stage, mode)
    stage.run(60)
    renewals: list[AgentLease | None] = []
    reports = sent(stage, tmp_path, 100, renewals)
    assert 1 <= len(reports) <= (8 if stalled else 4)
    assert len(renewals) in renewed
    last = renewals[-1]
    assert last is not None
    assert reports[-1].sequence in last.current
    assert {report.suspicious for report in reports} == {stalled}
    assert {bool(report.ranks) for report in reports} == {has_ranks}


def test_report_builder__that_it_can_be_decided_again_whether_ranks_continue_is_reported_at_once(
    tmp_path,
):
    stage = Stage(connected=False)
    stage.run(30)
    all_become(stage, "run")
    stage.run(60)
    assert [bool(report.ranks) for report in sent(stage, tmp_path, 2)] == [True]
    all_become(stage, "train")
    assert [bool(report.ranks) for report in sent(stage, tmp_path, 2)] == [False]


def test_report_builder__it_knows_whether_its_reports_say_what_logs_show(tmp_path):
    stage = Stage(connected=True)
    stage.run(30)
    pods = tuple(pod(number) for number in range(len(stage.procs)))
    reporter = SimpleNamespace(put=lambda _: None)
    builder = ReportBuilder(Identity("a", "kcover"), reporter, ReportCache(tmp_path), lambda: False)  # type: ignore[arg-type]
    said = []
    for rules, mode in [((), "train"), ((JobRule("loss"),), "train"), ((), "train"), ((), "futex")]:
        all_become(stage, mode)
        stage.run(60)
        here = LocalGang(GANG, pods, Policy(), job_rules=rules)
        builder.make([GangWatch(here, watched(stage))], ())
        said.append(builder.reports_logs)
    assert said == [False, True, False, True]


def test_report_builder__what_logs_show_is_reported_of_a_fault_and_never_of_a_job_that_works(
    tmp_path,
):
    found = (
        ContainerLog("uid-0", "main", 0, (LogFinding("storage_full", "storage", "error", 1, 1.0),)),
    )
    stage = Stage()
    stage.run(30)
    assert {report.logs for report in sent(stage, tmp_path, 40, logs=found)} == {()}
    stage.exit(stage.rank(2), signal=11)
    assert sent(stage, tmp_path, 2, logs=found)[-1].logs == found


def test_stalled__a_job_whose_rank_died_has_stalled_until_it_gets_over_that():
    """Else a restart would count as recovered by the training that went before the crash."""
    stage = Stage()
    stage.run(30)
    stage.exit(stage.rank(2), signal=9)
    stage.one_pass(NS)
    assert stage.job.attention.stalled
    stage.run(5)
    assert stage.job.attention.stalled
