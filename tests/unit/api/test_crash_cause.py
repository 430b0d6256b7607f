"""A crash for which a node, the network or a storage is to blame is no bug of the program, however it is wrapped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.gang import log_evidence
from kcover_ebpf.gang.log_evidence import LogEvidence
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.logs.rules import LogDomain
from kcover_ebpf.model.verdict import Cause, Culprit, FailureClass, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import repeated_crash
from kcover_ebpf.recovery.restart.repeated_crash import why_hopeless
from tests.unit.support import crash_logs
from tests.unit.support.crash_inputs import crashed
from tests.unit.support.crash_logs import logged
from tests.unit.support.log_builders import NODES, seen
from tests.unit.support.report_builders import NOW_S

CULPRIT = Culprit(rank=1, pid=100, pod_uid="uid-1")
VERDICT = Verdict(VerdictKind.CRASHED, Cause.EXITED, since_s=NOW_S - 2.0, culprit=CULPRIT)


def read(log: ContainerLog) -> LogEvidence:
    return log_evidence.read(seen(log), NODES, VERDICT, NOW_S)


def hopeless(text: str) -> str | None:
    """Why a job is not restarted that failed in the same way an hour ago; None if it is."""
    first = read(logged(text, start=0)).crashes
    earlier = [replace(record, time_s=record.time_s - 3600) for record in first]
    found = read(logged(text, start=1))
    status = Status(
        Phase.OPEN,
        verdict=Verdict(kind=VerdictKind.CRASHED, cause=Cause.EXITED),
        failure=found.failure,
        crashes=found.crashes,
    )
    return why_hopeless(status, earlier)


NO_BUGS = {
    "a worker of the loader that lost its file server": (crash_logs.STALE, FailureClass.STORAGE),
    "a disk's error in an error of the program's own": (crash_logs.WRAPPED, FailureClass.STORAGE),
    "a hub that cannot be reached": (crash_logs.HUB, FailureClass.NETWORK),
    "NCCL on a GPU whose memory failed": (crash_logs.ECC, FailureClass.HARDWARE),
    "NCCL that cannot connect": (crash_logs.SOCKET, FailureClass.NETWORK),
    "NCCL without shared memory": (crash_logs.SHM, FailureClass.PROGRAM),
    "a server that refuses, asked for what is not cached": (crash_logs.CACHE, FailureClass.NETWORK),
    "a fabric that lost a transfer, in an error of the program's own": (
        crash_logs.UCX, FailureClass.NETWORK,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "failure"), NO_BUGS.values(), ids=NO_BUGS)
def test_crash_cause__outside_of_the_program_is_no_bug_of_it(
    text: str, failure: FailureClass
) -> None:
    assert read(logged(text, start=0)).failure is failure
    assert hopeless(text) is None


BUGS = {
    "alone": crash_logs.BUG,
    "and what the other ranks and torchrun write": crash_logs.BUG + crash_logs.AFTERWARDS,
    "after ranks waited for each other": (
        "[W1122 10:00:00.1 socket.cpp:697] [c10d] The client socket has failed to connect to [j-0]:29500 "
        "(errno: 111 - Connection refused).\n" + crash_logs.BUG
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", BUGS.values(), ids=BUGS)
def test_crash_cause__a_bug_of_the_program_ends_the_restarts(text: str) -> None:
    assert read(logged(text, start=0)).failure is FailureClass.PROGRAM
    assert "a bug of the program" in (hopeless(text) or "")


@pytest.mark.parametrize("before", ["", crash_logs.BUG], ids=["alone", "after a handled error"])
def test_crash_cause__what_ranks_say_about_each_other_is_the_cause_where_it_comes_first(
    before: str,
) -> None:
    text = before + crash_logs.SOCKET
    text += crash_logs.raised("RuntimeError: training failed", line=90)
    assert read(logged(text, start=0)).failure is FailureClass.NETWORK
    assert hopeless(text) is None


def test_rules__what_follows_from_a_failure_elsewhere_is_no_rule_about_a_part_of_the_node() -> None:
    domains = {rule.domain for rule in crash_logs.RULES if rule.follows}
    assert domains == {LogDomain.NETWORK, LogDomain.OUTSIDE, LogDomain.PROGRAM}
    assert [
        rule.name
        for rule in crash_logs.RULES
        if rule.follows and rule.domain is LogDomain.PROGRAM and not rule.generic
    ] == []


PREEMPTED = "INFO: received SIGTERM, saving a checkpoint\n" + crash_logs.raised(
    "RuntimeError: the run was stopped"
)


def test_crash_cause__an_end_from_outside_is_no_bug() -> None:
    assert hopeless(PREEMPTED) is None
    assert "a bug of the program" in (hopeless(crash_logs.BUG) or "")


def test_crash_cause__that_a_launcher_ends_the_others_afterwards_changes_nothing() -> None:
    at_s = NOW_S - 2.1
    closing = "W1130 12:13:49.388 1 torch/distributed/elastic/api.py:900] Sending process 7 closing signal SIGTERM"
    reader = ContainerLogReader("uid-1", "main", crash_logs.RULES)
    texts = [(at_s, line) for line in crash_logs.BUG.splitlines()] + [(at_s + 0.5, closing)]
    block = "".join(f"{rfc3339.to_text(time_s)} stderr F {text}\n" for time_s, text in texts)
    reader.feed(Chunk(0, block.encode(), is_first=True), NOW_S)
    shown = reader.summary(NOW_S)
    assert shown is not None
    assert len(read(shown).crashes) == 1


def test_with_logs__a_crash_is_forgotten_once_its_log_shows_another_cause() -> None:
    """A log may be read up to the middle of what a crash wrote."""
    wrapper, _, _ = crash_logs.STALE.partition("Original")
    world = crashed()

    def after(text: str, status: Status) -> Status:
        reports = seen(logged(text, start=1))
        return repeated_crash.with_logs(status, replace(world, reports=reports))

    begun = Status(
        Phase.OPEN,
        verdict=Verdict(
            kind=VerdictKind.CRASHED, cause=Cause.EXITED, since_s=VERDICT.since_s, culprit=CULPRIT
        ),
    )
    early = after(wrapper, begun)
    assert len(early.crashes) == 1
    late = after(crash_logs.STALE, early)
    assert late.crashes == ()
    assert after(crash_logs.STALE, late) is late


def test_why_hopeless__does_not_contradict_the_class_of_the_incident() -> None:
    (first,) = read(logged(crash_logs.BUG, start=0)).crashes
    (last,) = read(logged(crash_logs.BUG, start=1)).crashes
    status = Status(
        Phase.OPEN,
        verdict=Verdict(kind=VerdictKind.CRASHED, cause=Cause.EXITED),
        crashes=(first, last),
    )
    assert why_hopeless(replace(status, failure=FailureClass.PROGRAM), ()) is not None
    for other in (FailureClass.HARDWARE, FailureClass.NETWORK, FailureClass.STORAGE):
        assert why_hopeless(replace(status, failure=other), ()) is None
