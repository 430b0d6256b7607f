"""What the logs of a gang's pods add to a fault: its class, sentences, what identifies a crash; never a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.log_report import ContainerLog, LogFinding, LoggedTraceback
from kcover_ebpf.diagnosis.clock.certainty import certainty_of
from kcover_ebpf.gang import log_evidence
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.log_evidence import LogEvidence
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    FailureClass,
    Verdict,
    VerdictKind,
)
from tests.unit.support.log_builders import BUG, NODES, log, seen
from tests.unit.support.report_builders import NOW_S, case, local, rank, report

SINCE_S = NOW_S - 2.0
ECC = LogFinding("cuda_ecc", "hardware", "fatal", 1, 1.0, "the GPU's memory failed", "drain it")
GONE = LogFinding("gloo_peer_lost", "network", "warning", 3, 1.0)
GENERIC = LogFinding("python_error", "program", "error", 1, 1.0, generic=True)
FULL = LogFinding("storage_full", "storage", "error", 1, 1.0, "a file system is full")


def finding(rule: str, domain: str, **more) -> LogFinding:
    return replace(LogFinding(rule, domain, "error", 1, 1.0), **more)


def crash(cause: Cause = Cause.EXITED, *, culprit: int | None = 1) -> Verdict:
    who = None if culprit is None else Culprit(rank=culprit, pid=100, pod_uid=f"uid-{culprit}")
    return Verdict(VerdictKind.CRASHED, cause, since_s=SINCE_S, culprit=who)


def read(verdict: Verdict, *logs: ContainerLog, end: str = "code 1") -> LogEvidence:
    return log_evidence.read(seen(*logs, end=end), NODES, verdict, NOW_S)


CLASSES = {
    "a bug": (crash(), [BUG, GENERIC], "code 1", FailureClass.PROGRAM),
    "a bug, and peers that noticed": (crash(), [BUG, GENERIC, GONE], "code 1", FailureClass.PROGRAM),
    "a GPU that fails raises an error of Python": (crash(), [BUG, ECC], "code 1", FailureClass.HARDWARE),
    "a full disk": (crash(), [FULL, GENERIC], "code 1", FailureClass.STORAGE),
    "a traceback about the network": (
        crash(), [replace(BUG, rule="store_timeout", domain="network")], "code 1", FailureClass.NETWORK,
    ),
    "out of memory in the log": (
        crash(), [finding("host_out_of_memory", "memory")], "code 1", FailureClass.PROGRAM,
    ),
    "a victim's warning is no cause": (crash(), [GONE], "code 1", FailureClass.UNKNOWN),
    "what is long before is no cause": (
        crash(), [replace(ECC, age_s=90.0)], "code 1", FailureClass.UNKNOWN,
    ),
    "a launcher's traceback is no cause": (
        crash(), [replace(BUG, secondary=True)], "code 1", FailureClass.UNKNOWN,
    ),
    "no log, a signal": (crash(Cause.SEGFAULT), [], "signal 11", FailureClass.PROGRAM),
    "no log, a bus error": (crash(Cause.SEGFAULT), [], "signal 7", FailureClass.STORAGE),
    "no log, code 1": (crash(), [], "code 1", FailureClass.UNKNOWN),
    "the kernel's killer needs no log": (
        crash(Cause.OOM_KILLED), [ECC], "signal 9", FailureClass.PROGRAM,
    ),
    "an announced device": (
        replace(crash(), kind=VerdictKind.DEVICE_FAULT, cause=Cause.DEVICE), [BUG], "code 1",
        FailureClass.HARDWARE,
    ),
    "a link that is lost": (
        replace(crash(), kind=VerdictKind.LOST_LINK, cause=Cause.LINK), [FULL], "code 1",
        FailureClass.NETWORK,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("verdict", "found", "end", "failure"), CLASSES.values(), ids=CLASSES)
def test_read__class(verdict: Verdict, found, end: str, failure: FailureClass) -> None:
    assert read(verdict, log(1, *found), end=end).failure is failure


def test_log_evidence__the_logs_of_victims_say_nothing_about_the_culprit() -> None:
    assert read(crash(), log(3, ECC), log(0, BUG)).failure is FailureClass.UNKNOWN


def test_log_evidence__a_report_about_a_pod_of_another_node_does_not_count() -> None:
    forged = report("a", rank(0), rank(2), logs=(log(1, ECC, BUG),))
    found = log_evidence.read((forged,), NODES, crash(), NOW_S)
    assert found == LogEvidence()


def test_evidence__names_pod_rule_and_place() -> None:
    texts = [evidence.text for evidence in read(crash(), log(1, BUG, ECC)).evidence]
    assert texts == [
        f"log of pod j-1: traceback {'f' * 16} at train.py:71, step 1200 (python_error)",
        "log of pod j-1: the GPU's memory failed (cuda_ecc, hardware); drain it",
        (
            "exit code 1: an error that the program reported itself; an uncaught Python exception ends so; "
            "read the end of its log"
        ),
    ]


def test_crash__of_all_ranks_without_a_culprit_needs_one_traceback() -> None:
    verdict = crash(culprit=None)
    same = read(verdict, log(0, BUG), log(1, BUG)).crashes
    assert {record.fingerprint for record in same} == {BUG.fingerprint}
    other = replace(BUG, fingerprint="0" * 16)
    assert read(verdict, log(0, BUG), log(1, other)).crashes == ()
    victim = replace(other, rule="gloo_peer_lost", domain="network")
    found = read(verdict, log(0, victim), log(1, BUG))
    assert [record.pod_uid for record in found.crashes] == ["uid-1"]
    assert found.failure is FailureClass.PROGRAM
    assert read(verdict, log(0, victim), log(1, victim)).failure is FailureClass.NETWORK


@pytest.mark.parametrize(
    ("cause", "found", "known"),
    [
        (Cause.EXITED, BUG, True),
        (Cause.ABORTED, BUG, True),
        (Cause.KILLED, BUG, False),
        (Cause.OOM_KILLED, BUG, False),
        (Cause.EXITED, replace(BUG, domain="network"), False),
        (Cause.EXITED, replace(BUG, secondary=True), False),
        (Cause.EXITED, replace(BUG, age_s=40.0), False),
    ],
)
def test_crash__only_of_a_program_that_raised_just_before(
    cause: Cause, found: LoggedTraceback, known: bool
) -> None:
    assert bool(read(crash(cause), log(1, found)).crashes) is known


def test_crash__is_identified_by_all_that_was_raised() -> None:
    handled = replace(BUG, fingerprint="0" * 16, age_s=20.0)
    (alone,) = read(crash(), log(1, handled)).crashes
    (both,) = read(crash(), log(1, handled, BUG)).crashes
    assert (both.place, both.start, both.pod_uid, both.node) == ("train.py:71", 0, "uid-1", "b")
    assert both.fingerprint not in (alone.fingerprint, BUG.fingerprint)
    assert both.time_s == pytest.approx(NOW_S - 0.5 - 1.6)


# --- the merged verdict


def test_merge__a_crash_carries_what_its_log_shows() -> None:
    verdict = local(VerdictKind.CRASHED, Cause.EXITED, 1, 1.5, EvidenceKind.EVENT)
    first, second = seen(log(1, BUG, ECC))
    second = replace(second, report=replace(second.report, verdict=verdict))
    merged = merge(case(first, second))
    kinds = [evidence.kind for evidence in merged.evidence]
    assert kinds[0] is EvidenceKind.EVENT
    assert EvidenceKind.LOG in kinds


def test_merge__logs_make_no_fault_of_a_job_that_works() -> None:
    calm = tuple(
        report(received.report.node, suspicious=False, logs=received.report.logs)
        for received in seen(log(0, BUG, ECC), log(1, BUG, ECC))
    )
    assert merge(case(*calm)).verdict.kind is VerdictKind.WORKING


@pytest.mark.parametrize("kind", [kind for kind in EvidenceKind if kind is not EvidenceKind.EVENT])
def test_certainty__a_log_never_completes_the_evidence_that_ends_a_job(kind: EvidenceKind) -> None:
    def certainty(*evidence: Evidence) -> Certainty | None:
        return certainty_of(VerdictKind.HUNG, Cause.BLOCKED_LOCK, Culprit(1), evidence)

    other = Evidence(kind, "y")
    assert certainty(Evidence(EvidenceKind.LOG, "x"), other) is certainty(other)
