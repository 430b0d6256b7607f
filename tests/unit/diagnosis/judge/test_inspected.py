"""What NCCL Inspector's files say is evidence of a slow or stalled job, and decides nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.judge.inspected import by_inspector
from kcover_ebpf.diagnosis.membership.rank_numbers import INSPECTOR_FOLDER
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.inspector import GroupMember, InspectorSeen, SlowCollective, SlowKind
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.collectives import INSPECTOR_FRESH_S
from kcover_ebpf.watching.job_watch import JobWatch
from tests.unit.support.scripted_job import Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working

MEMBER = GroupMember(3, "node-1", 7, 5)
LATE = SlowCollective(
    SlowKind.LATE_RANK, "0xa", "AllReduce", 64 << 20, (MEMBER,), 8, 60, 0.03, 0.01
)
TEXT = (
    "by NCCL Inspector, rank 5 on node-1 is the last to begin AllReduce of 64 MiB over 8 ranks: "
    "the others wait 30.0 ms for it, the transfer takes 10.0 ms (60 operations, communicator 0xa)"
)


def texts(found: Finding | Verdict) -> list[str]:
    return [one.text for one in found.evidence if one.kind is EvidenceKind.EDGE]


@pytest.mark.parametrize(
    ("kind", "cause", "is_shown"),
    [
        (VerdictKind.SLOW, Cause.SLOW_JOB, True),
        (VerdictKind.HUNG, Cause.DEVICE_WAIT, True),
        (VerdictKind.UNKNOWN, Cause.WAIT_CYCLE, True),
        (VerdictKind.WORKING, Cause.TRAINING, False),
        (VerdictKind.CRASHED, Cause.KILLED, False),
    ],
)
def test_by_inspector__slow_and_stalled_jobs_are_explained(
    kind: VerdictKind, cause: Cause, is_shown: bool
) -> None:
    finding = Finding(kind, cause, NS)
    found = by_inspector(finding, InspectorSeen(NS, (LATE,)), 2 * NS)
    assert texts(found) == ([TEXT] if is_shown else [])
    assert (found.kind, found.cause, found.culprit) == (kind, cause, None)
    assert found.certainty is finding.certainty


def test_by_inspector__old_findings_and_more_than_two_are_not_shown() -> None:
    finding = Finding(VerdictKind.SLOW, Cause.SLOW_JOB, NS)
    seen = InspectorSeen(NS, (LATE,) * 4)
    assert len(by_inspector(finding, seen, 2 * NS).evidence) == 2
    late_ns = round((INSPECTOR_FRESH_S + 2) * NS)
    assert by_inspector(finding, seen, late_ns) is finding
    assert by_inspector(finding, InspectorSeen(NS), 2 * NS) is finding


def test_inspected__a_straggler_is_reported_with_what_the_files_say() -> None:
    stage = trained()
    stage.become(stage.rank(2), "run")
    while not not_working(stage):
        stage.rank(2).sent += 100_000
        stage.feed(InspectorSeen(stage.now_ns, (LATE,)))
        stage.one_pass(NS)
    (verdict,) = not_working(stage)
    assert verdict.cause is Cause.SLOW_RANK
    assert texts(verdict) == [TEXT]


def test_inspected__what_a_job_writes_makes_no_stall_more_certain() -> None:
    stage = trained()
    all_wait(stage, -1)
    for _ in range(60):
        stage.feed(InspectorSeen(stage.now_ns, (LATE,)))
        stage.run(1)
    verdict = stage.verdicts[-1]
    assert TEXT in texts(verdict)
    assert verdict.certainty is Certainty.SUSPECTED


def _watch(environ: dict[str, str]) -> JobWatch:
    watch = JobWatch(cast("Any", None), Tracker("job", "host"), SyscallTable("x86_64"), Settings())
    stage = Stage()
    stage.run(20)
    watch._judging.job = stage.job
    watch._ras = cast("Any", SimpleNamespace(tick=lambda *_: [], close=lambda: None))
    for pid, view in stage.job.members.ranks.items():
        view.seen = ProcessSeen(1, pid, Pid(1), "python3", ("python3",), environ)
    return watch


@pytest.mark.parametrize(
    ("environ", "stalled", "is_read"),
    [
        ({INSPECTOR_FOLDER: "dump"}, True, True),
        ({INSPECTOR_FOLDER: "dump"}, False, False),
        ({}, True, False),
    ],
)
def test_job_watch__the_files_of_a_stalled_job_are_read(
    environ: dict[str, str], stalled: bool, is_read: bool
) -> None:
    watch = _watch(environ)
    if stalled:
        watch.job.attention.suspect(True, Stall.CERTAIN, watch.job.now_ns)
    watch.ask_collectives()
    assert (watch._inspector is not None) == is_read
    watch.close()
