"""The part of an archive that an agent keeps before a gang is ended: real processes in an invented control group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.agent.orders import bundles
from kcover_ebpf.agent.orders.bundles import Bundles, GangReports
from kcover_ebpf.agent.orders.evidence_reader import Readings
from kcover_ebpf.agent.orders.evidence_thread import EvidenceRequest
from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.api.order import Verb
from kcover_ebpf.archive.incident_archive import unpacked
from kcover_ebpf.archive.node_part import EvidenceTrigger, NodePart
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.output import archives
from kcover_ebpf.output.bundles import BundleBounds, bundle_name, bundles_of, prune
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S, SNAPSHOT_LIMIT_S
from kcover_ebpf.watching import py_spy
from tests.unit.support import report_builders as build
from tests.unit.support.children import child_in

GANG = Gang(GangId.of("ns", build.SELECTOR), "j", "Job")
SECRET = "s3cr3t-0451"
"""In the arguments and the environment of the process, and nowhere else."""
NOW_S = 1_700_000_000.0
LOGS = {"j-0.main.log": "step 17 loss 0.3\n"}
LIMITS = ("BUNDLE_LIMIT_S", "SNAPSHOT_LIMIT_S")
SPY = """#!/bin/sh
for last; do pid=$last; done
echo '[{"os_thread_id": '$pid', "frames": [
  {"name": "save", "filename": "/jobs/train.py", "short_filename": "train.py", "line": 71}]}]'
"""


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    program = tmp_path / "py-spy"
    program.write_text(SPY)
    program.chmod(0o755)
    monkeypatch.setattr(py_spy, "program", lambda: str(program))
    for limit in LIMITS:  # a busy machine may need longer to start it
        monkeypatch.setattr(bundles, limit, 60.0)
    return program


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningContainer]:
    """One container of one process that waits."""
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    with child_in("ready(); time.sleep(600)", [f"--token={SECRET}"]) as request:
        (group / "cgroup.procs").write_text(f"{request.pid}\n")
        (group / "cpu.pressure").write_text("some avg10=12.00 avg60=0.00 avg300=0.00 total=5\n")
        (group / "cpu.stat").write_text("usage_usec 5\nnr_throttled 3\nthrottled_usec 900\n")
        (group / "memory.current").write_text("4096\n")
        (group / "memory.max").write_text("max\n")
        assert SECRET in Path(f"/proc/{request.pid}/cmdline").read_text()
        assert SECRET in Path(f"/proc/{request.pid}/environ").read_text()
        yield RunningContainer("uid-0", "c" * 64, group)


def pid_of(container: RunningContainer) -> Pid:
    return Pid(int((container.path / "cgroup.procs").read_text()))


def rank_of(container: RunningContainer) -> RankSnapshot:
    pid = pid_of(container)
    return build.rank(0, pid=pid, tid=pid)


def request(
    *found: RunningContainer, verb: Verb = Verb.STOP, with_logs: bool = True
) -> EvidenceRequest:
    return EvidenceRequest(GANG, "j-abc", verb, found, {"uid-0": "j-0"}, with_logs)


def tails(namespace: str, uids: Sequence[str]) -> Mapping[str, str]:
    assert (namespace, list(uids)) == ("ns", ["uid-0"])
    return LOGS


def written(
    folder: Path,
    asked: EvidenceRequest,
    report: FaultReport | None = None,
    source=tails,
    complete: Callable[[Gang], FaultReport | None] | None = None,
) -> NodePart:
    errors: list[str] = []
    reports = GangReports(lambda _: report, complete or (lambda _: report))
    kept = Bundles(folder, reports, errors.append, source, "n0", clock=lambda: NOW_S)
    writer = kept.of(asked)
    writer.write()
    assert errors == []
    assert Path(writer.path).name == bundle_name(NOW_S, "j-abc")
    archive = unpacked(archives.read_files(Path(writer.path)), "bundle")
    assert (archive.job, archive.name, archive.missing) == ("ns/j", "j-abc", ())
    (part,) = archive.parts
    return part


def test_bundles__a_part_has_report_threads_stacks_pressure_and_logs(
    container: RunningContainer, spy: Path, tmp_path: Path
) -> None:
    report = build.report("n0", rank_of(container)).report
    part = written(tmp_path / "kept", request(container), report)
    pid = pid_of(container)
    assert (part.node, part.trigger, part.report) == ("n0", EvidenceTrigger.STOP, report)
    (stack,) = part.stacks
    assert (stack.pid, stack.rank, stack.python) == (pid, 0, ("save (train.py:71)",))
    assert stack.native, "of the C library, or at least the sampled words"
    (thread,) = [found for found in part.threads if found.tid == pid]
    assert (thread.rank, thread.state, thread.role) == (0, "S", "rank")
    assert "nanosleep" in thread.wait
    (group,) = part.pressure
    assert group.name == f"j-0 {'c' * 12}"
    assert group.cpu.startswith("some avg10=12.00")
    assert group.throttled == "nr_throttled 3\nthrottled_usec 900"
    assert (group.memory_bytes, group.memory_most_bytes) == (4096, None)
    assert part.logs == LOGS


def test_bundles__no_argument_and_no_environment_is_in_it(
    container: RunningContainer, spy: Path, tmp_path: Path
) -> None:
    report = build.report("n0", rank_of(container)).report
    written(tmp_path / "kept", request(container), report)
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert len(files) >= 6
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_bundles__a_pod_whose_processes_crashed_has_its_logs_in_it(tmp_path: Path) -> None:
    part = written(tmp_path, request(verb=Verb.SNAPSHOT), build.report("n0").report)
    assert part.logs == LOGS
    assert part.trigger is EvidenceTrigger.SNAPSHOT
    assert (part.threads, part.stacks) == ((), ())


def test_bundles__a_policy_may_leave_log_lines_out(tmp_path: Path) -> None:
    part = written(tmp_path, request(with_logs=False), build.report("n0").report)
    assert part.logs == {}
    assert any("evidenceLogs" in text for text in part.unobserved)


def test_bundles__what_could_not_be_read_is_said(
    container: RunningContainer, spy: Path, tmp_path: Path
) -> None:
    def fails(*_: object) -> Mapping[str, str]:
        raise ReaderError("no answer")

    spy.write_text("#!/bin/sh\nexit 1\n")
    part = written(tmp_path / "kept", request(container), None, fails)
    said = "; ".join(part.unobserved)
    assert "logs of containers: no answer" in said
    assert "Python frames" in said
    assert "report of this node" in said


def test_bundles__evidence_is_taken_within_its_time(
    container: RunningContainer, spy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "BUNDLE_LIMIT_S", BUNDLE_LIMIT_S)
    spy.write_text("#!/bin/sh\nexec sleep 60\n")
    part = written(tmp_path / "kept", request(container), build.report("n0").report)
    assert any("no time was left" in text for text in part.unobserved)
    assert part.threads


BOUNDS = {
    "number": (BundleBounds(count=2), ["3", "4"]),
    "bytes": (BundleBounds(size_bytes=250), ["3", "4"]),
    "age": (BundleBounds(age_s=250.0), ["3", "4"]),
}


@pytest.mark.parametrize(("bounds", "left"), BOUNDS.values(), ids=BOUNDS.keys())
def test_prune__the_oldest_go_first(tmp_path: Path, bounds: BundleBounds, left: list[str]) -> None:
    for number in range(5):
        folder = tmp_path / bundle_name(NOW_S + 100 * number, str(number))
        (folder / "nodes").mkdir(parents=True)
        (folder / "nodes/a").write_bytes(b"x" * 100)
    (tmp_path / "notes").mkdir()
    (tmp_path / "20300101Z-link").symlink_to("/etc")
    prune(tmp_path, NOW_S + 500, bounds)
    kept = [path.name for path in sorted(tmp_path.glob("*Z-?"))]
    assert [name.rpartition("-")[2] for name in kept] == left
    assert (tmp_path / "notes").is_dir(), "what is no bundle is not ours"
    assert Path("/etc").is_dir()


def test_prune__a_clock_that_was_set_back_costs_no_new_bundle(tmp_path: Path) -> None:
    ahead = [bundle_name(NOW_S + days * 86400.0, "a") for days in (1, 2, 3)]
    new = [bundle_name(NOW_S + seconds, "a") for seconds in (0, 10)]
    for name in (*ahead, *new):
        (tmp_path / name).mkdir()
    prune(tmp_path, NOW_S, BundleBounds(count=3))
    assert {path.name for path in tmp_path.iterdir()} == {ahead[2], *new}


def test_bundles_of__those_of_one_incident_and_the_newest_last(tmp_path: Path) -> None:
    for second, what in ((3, "job-1"), (1, "job-1"), (2, "x-job-1"), (4, "job-1-b")):
        (tmp_path / bundle_name(NOW_S + second, what)).mkdir()
    (tmp_path / bundle_name(NOW_S + 9, "job-1")).symlink_to("/etc")
    found = [path.name for path in bundles_of(tmp_path, "job-1")]
    assert found == [bundle_name(NOW_S + second, "job-1") for second in (1, 3)]


def test_bundles__stacks_are_read_while_the_report_is_waited_for(
    tmp_path: Path, spy: Path, container: RunningContainer
) -> None:
    begun = tmp_path / "begun"
    spy.write_text(SPY.replace("for last", f"touch {begun}\nfor last"))
    report = build.report("n0", rank_of(container)).report

    def complete(_: Gang) -> FaultReport:
        end_s = time.monotonic() + 10.0
        while not begun.exists():
            assert time.monotonic() < end_s, "py-spy was not started before the report was complete"
            time.sleep(0.01)
        return report

    bare = replace(report, ranks=())
    part = written(
        tmp_path / "bundles", request(container, verb=Verb.SNAPSHOT), bare, complete=complete
    )
    (stack,) = part.stacks
    assert (stack.rank, stack.python) == (0, ("save (train.py:71)",))


@pytest.mark.parametrize("later", [None, build.report("n0").report], ids=["none", "no ranks"])
def test_bundles__ranks_that_end_while_they_are_read_are_those_of_the_order(
    later: FaultReport | None, tmp_path: Path, spy: Path, container: RunningContainer
) -> None:
    report = build.report("n0", rank_of(container)).report
    asked = request(container, verb=Verb.SNAPSHOT)
    part = written(tmp_path / "kept", asked, report, complete=lambda _: later)
    assert part.report is not None
    assert [rank.rank for rank in part.report.ranks] == [0]
    assert [stack.rank for stack in part.stacks] == [0]


@pytest.mark.parametrize(
    ("verb", "limit_s"),
    [
        (Verb.STOP, BUNDLE_LIMIT_S),
        (Verb.SNAPSHOT, SNAPSHOT_LIMIT_S),
    ],
)
def test_bundles__only_what_a_kill_may_wait_for_has_two_seconds(
    verb: Verb, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    class FakeReading:
        def __init__(self, *_: object) -> None: ...

        def finish(self, ranks: object, names: object, end_s: float) -> Readings:
            limits.append(end_s - time.monotonic())
            return Readings()

    monkeypatch.setattr("kcover_ebpf.agent.orders.bundles.EvidenceReading", FakeReading)
    written(tmp_path, request(verb=verb), build.report("n0").report)
    assert limits == [pytest.approx(limit_s, abs=1.5)]
