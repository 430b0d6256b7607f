"""A report is cut to what the API server takes, and says so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import (
    FaultReport,
    PodPorts,
    PodRef,
    ReportedJob,
    object_of,
)
from kcover_ebpf.gang.report_size import MOST_BYTES, fitted
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, Verdict, VerdictKind

UID = "6c1b1f0e-0000-4000-8000-000000000001"
LONG = 2**62
SOCKET = SocketSnapshot(
    Endpoint("2001:db8:1234:5678:9abc:def0:1234:5678", 65535),
    Endpoint("2001:db8:1234:5678:9abc:def0:1234:5678", 65535),
    "ESTABLISHED",
    2**31,
    2**31,
    2**31,
    2**31,
    99,
    123456.789,
)


def rank(number: int, sockets: int, frames: int, letter: str = "x") -> RankSnapshot:
    return RankSnapshot(
        pod_uid=UID,
        pid=Pid(4_000_000 + number),
        role=Role.RANK,
        state=State.STORING,
        tid=4_000_000 + number,
        rank=number,
        world_size=9_999_999,
        text=letter * 512,
        age_s=123456.789,
        threshold_s=123456.789,
        sent_age_s=123456.789,
        received_age_s=123456.789,
        proven=True,
        effort=Effort.CHILDREN,
        timed=True,
        waits_for=tuple(map(Pid, range(4_000_000, 4_000_064))),
        stack=(letter * 256,) * frames,
        known_wait=True,
        joined=True,
        exit="signal 11",
        sockets=(SOCKET,) * sockets,
    )


def report(*ranks: RankSnapshot) -> FaultReport:
    evidence = (Evidence(EvidenceKind.EVENT, "e" * 1024, "n"),) * 32
    verdict = Verdict(
        VerdictKind.HUNG, Cause.STOPPED, since_s=0.0, evidence=evidence, unobserved=("before",)
    )
    pods = (PodRef("train-0", UID),)
    job = ReportedJob("train", {"job": "train"})
    return FaultReport("n", 1.0, 1, job=job, pods=pods, verdict=verdict, ranks=ranks)


def size(made_report: FaultReport) -> int:
    return len(json.dumps(object_of(made_report, "team", "r", made_report.pods)))


def test_fitted__a_report_that_fits_is_left_alone() -> None:
    small = report(*(rank(number, 4, 4) for number in range(8)))
    assert fitted(small) is small
    large = report(*(rank(number, 16, 8) for number in range(64)))
    assert 500_000 < size(large) < MOST_BYTES
    assert fitted(large) == large


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}", "\\"])
@pytest.mark.parametrize(("count", "sockets"), [(8, 64), (64, 0), (512, 3), (512, 64)])
def test_fitted__every_report_fits(count: int, sockets: int, letter: str) -> None:
    made = fitted(report(*(rank(number, sockets, 32, letter) for number in range(count))))
    assert size(made) < 1_000_000
    assert made.ranks


def test_fitted__connections_go_before_frames_and_frames_before_ranks() -> None:
    whole = report(*(rank(number, 64, 32) for number in range(64)))
    made = fitted(whole)
    assert len(made.ranks) == 64
    assert {len(rank_snapshot.sockets) for rank_snapshot in made.ranks} == {4}
    assert {len(rank_snapshot.stack) for rank_snapshot in made.ranks} == {32}
    assert made.verdict is not None
    assert made.verdict.unobserved == (
        "truncated to fit the report size limit; included: 256 of 4096 connections",
        "before",
    )
    assert made.ranks[0] == replace(whole.ranks[0], sockets=whole.ranks[0].sockets[:4])


def test_fitted__the_first_ranks_are_kept() -> None:
    made = fitted(report(*(rank(number, 64, 32) for number in range(512))), most_bytes=200_000)
    numbers = [rank_snapshot.rank for rank_snapshot in made.ranks]
    assert 50 < len(numbers) < 512
    assert numbers == list(range(len(numbers)))
    assert made.verdict is not None
    assert "0 of 32768 connections, 0 of 16384 frames" in made.verdict.unobserved[0]


def test_fitted__a_snapshot_without_a_verdict_is_cut_too() -> None:
    whole = replace(report(*(rank(number, 64, 32) for number in range(512))), verdict=None)
    assert size(fitted(whole)) < 1_000_000


def test_fitted__ports_are_said_only_beside_all_connections() -> None:
    said = FaultReport(node="n", time_s=1.0, sequence=1, listens=(PodPorts(UID, (4000,)),))
    small = replace(said, ranks=(rank(0, 4, 0),))
    assert fitted(small, 100_000).listens == said.listens
    large = replace(said, ranks=tuple(rank(number, 64, 0) for number in range(4)))
    assert fitted(large, 40_000).listens == ()
