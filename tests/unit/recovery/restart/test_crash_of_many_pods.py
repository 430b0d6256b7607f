"""A crash of many pods is noted in a few records, once, and its restart continues."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.codec import decode, encode
from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.restart import advance, guards
from kcover_ebpf.recovery.restart.context import GangPod, RestartInput
from kcover_ebpf.recovery.restart.repeated_crash import why_hopeless, with_logs
from tests.unit.support.crash_inputs import AGE_S, STEP_30, crashed, record
from tests.unit.support.guard_inputs import ask
from tests.unit.support.judged import judged
from tests.unit.support.report_builders import NOW_S, case, local, pod


def gang(start: int = 0, *, raised: int = 20, **more: object) -> RestartInput:
    """Twenty pods on two nodes that raised one error; each node announces that of its own rank."""
    at = crashed(pods=tuple(GangPod(pod(number)) for number in range(20)))
    logs = [
        ContainerLog(f"uid-{number}", "main", start, (), (replace(STEP_30, **more),))  # type: ignore[arg-type]
        for number in range(raised)
    ]
    reports = tuple(
        replace(
            report,
            report=replace(
                report.report,
                logs=tuple(logs[index::2]),
                verdict=local(VerdictKind.CRASHED, Cause.EXITED, index, AGE_S, EvidenceKind.EVENT),
            ),
        )
        for index, report in enumerate(at.reports)
    )
    return replace(at, reports=reports, gang_verdict=merge(case(*reports, pods=20)))


def test_with_logs__what_many_pods_raise_is_noted_once() -> None:
    at = gang()
    assert at.gang_verdict is not None
    assert at.gang_verdict.verdict.culprit is None
    begun = ask(at).context.status
    first = with_logs(begun, at)
    assert [(crash.pod_uid, crash.node) for crash in first.crashes] == [
        ("uid-0", "a"),
        ("uid-1", "b"),
    ]
    assert with_logs(first, at) is first
    reread = decode(Status, encode(first))
    assert with_logs(reread, at) is reread


def test_advance__a_restart_continues_when_many_pods_raise_one_error() -> None:
    at = gang()
    begun = guards.decide(ask(at)).status
    assert begun is not None
    turn = replace(ask(at).context, status=begun)
    move = advance.advance(turn)
    assert move.status is None or move.status.crashes == begun.crashes
    back = tuple(
        GangPod(
            replace(
                gang_pod.pod, containers=(replace(gang_pod.pod.containers[0], started_s=NOW_S),)
            )
        )
        for gang_pod in at.pods
    )
    done = advance.advance(replace(turn, world=replace(at, pods=back)))
    assert done.status is not None
    assert done.status.phase is Phase.RECOVERING


def test_with_logs__a_gang_that_crashes_again_is_hopeless() -> None:
    first = with_logs(ask(gang()).context.status, gang())
    earlier = tuple(replace(crash, time_s=crash.time_s - 100) for crash in first.crashes)
    acting = judged(replace(first, crashes=earlier), since_s=NOW_S - 100)
    for at in (gang(1, after_s=50.0), gang(1, raised=1, after_s=50.0), gang(1, after_s=None)):
        again = with_logs(acting, at)
        assert len(again.crashes) > len(earlier)
        assert why_hopeless(again, ()) is not None
        assert with_logs(again, at) is again


def test_with_logs__an_error_of_cuda_on_two_nodes_is_the_programs() -> None:
    first = with_logs(ask(gang()).context.status, gang(rule="cuda_program_error"))
    earlier = tuple(replace(crash, time_s=crash.time_s - 100) for crash in first.crashes)
    acting = judged(replace(first, crashes=earlier), since_s=NOW_S - 100)
    again = with_logs(acting, gang(1, raised=1, after_s=50.0, rule="cuda_program_error"))
    assert again.crashes[-1].node == "a"
    assert why_hopeless(again, ()) is not None


def test_with_logs__what_was_cut_is_not_noted_again() -> None:
    """Each pod fails at another step, so that each would be another record."""
    at = gang()
    reports = tuple(
        replace(report, report=replace(report.report, logs=tuple(
            replace(one, tracebacks=(replace(one.tracebacks[0], step=number * 2 + index),))
            for number, one in enumerate(report.report.logs)
        )))
        for index, report in enumerate(at.reports)
    )  # fmt: skip
    begun = ask(at).context.status
    first = with_logs(begun, replace(at, reports=reports))
    assert 1 < len(first.crashes) <= 16
    assert with_logs(first, replace(at, reports=reports)) is first
    old = tuple(
        record(pod_uid=f"old-{number:02}", step=1000 + number, time_s=NOW_S - 5, after_s=4.0)
        for number in range(16)
    )
    full = replace(first, crashes=old)
    assert with_logs(full, replace(at, reports=reports)) is full, "they failed together with those"


def test_with_logs__evidence_for_which_there_is_no_room_is_not_new_in_each_turn() -> None:
    begun = ask(gang()).context.status
    full = judged(begun, evidence=(Evidence(EvidenceKind.EVENT, "it ended"),) * 64)
    first = with_logs(full, gang())
    assert first.evidence == full.evidence
    assert with_logs(first, gang()) is first
