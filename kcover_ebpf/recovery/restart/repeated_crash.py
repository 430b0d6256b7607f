"""Whether a crash repeats an earlier one: the same traceback at the same step is a bug of the program. Pure.

A restart does not fix such a program, and costs the time of the whole job. Records of crashes are part of the status of
incidents, so that another controller knows them. So is the cost of a restart in steps, from the same logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.api.incident_parts import CrashRecord, LoggedWork
from kcover_ebpf.gang import log_evidence
from kcover_ebpf.gang.job_rules import LoggedProgress
from kcover_ebpf.gang.log_evidence import LogEvidence
from kcover_ebpf.model.verdict import RAISED, EvidenceKind, FailureClass, Verdict, VerdictKind
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.tunables.recovery import CRASH_AT_START_S, CRASH_LOGS_S, CRASH_READ_S

_MOST_CRASHES = 16
"""Most crashes that the CRD of an incident allows."""
_MOST_TOGETHER = _MOST_CRASHES // 2
"""Most crashes kept of ranks that fail together, so that an earlier crash is still known."""
_NODES_KEPT = 2
"""Nodes kept for ranks that fail together with one traceback at one step."""
_MOST_EVIDENCE = 64
_OF_DEVICES = ("cuda_", "loss_not_finite", "anomaly_detected")
"""Rules (or beginnings of their names) whose errors may also come from a bad device, or from memory that another
process left in use: they count as the same bug only on another node."""

NOT_THE_PROGRAM = (FailureClass.HARDWARE, FailureClass.NETWORK, FailureClass.STORAGE)
"""Classes of incidents after which another restart may end differently: on another node, or once a server answers."""


def with_logs(status: Status, restart_input: RestartInput) -> Status:
    """The status with what the logs of the job's pods show by now; the same object if nothing is new."""
    evidence = _read(status, restart_input)
    again = _again(status, restart_input)
    no_bugs = evidence.no_bugs | again.no_bugs
    # a log is not read to its end at once: an apparent bug may turn out to follow from another failure
    known = [crash for crash in status.crashes if _key(crash) not in no_bugs]
    crashes = _updated(known, (*evidence.crashes, *again.crashes))
    # described once, as at the fault; lines for which there is no room are not new in each pass
    is_described = any(sentence.kind is EvidenceKind.LOG for sentence in status.evidence)
    room = max(0, _MOST_EVIDENCE - len(status.evidence))
    lines = () if is_described else evidence.evidence[:room]
    is_known = status.failure not in (None, FailureClass.UNKNOWN)
    is_new = not is_known and evidence.failure is not FailureClass.UNKNOWN
    failure = evidence.failure if is_new else status.failure
    work = work_of(status, evidence.progress)
    if (crashes, failure, work) == (status.crashes, status.failure, status.work) and not lines:
        return status
    verdict = status.verdict
    if verdict is not None:
        verdict = replace(verdict, evidence=(*verdict.evidence, *lines))
    return replace(status, verdict=verdict, failure=failure, crashes=crashes, work=work)


def _updated(known: Sequence[CrashRecord], read: Sequence[CrashRecord]) -> tuple[CrashRecord, ...]:
    """Known records, updated from their logs, and the new ones, sorted by time; deterministic for the same logs.

    A log is not read to its end at once, so known records are updated before they are compared with new ones.
    """
    shown: dict[tuple[str, int], CrashRecord] = {}
    for record in read:
        shown.setdefault(_key(record), record)
    crashes = sorted((_as_shown(crash_record, shown) for crash_record in known), key=_order)
    for key, record in sorted(shown.items()):
        if key not in {_key(one) for one in crashes} and _is_new(record, crashes):
            crashes = sorted((*crashes, record), key=_order)[-_MOST_CRASHES:]
    return tuple(crashes)


def _as_shown(crash: CrashRecord, shown: Mapping[tuple[str, int], CrashRecord]) -> CrashRecord:
    now = shown.get(_key(crash), crash)
    return crash if _what(now) == _what(crash) else now


def _is_new(crash: CrashRecord, known: Sequence[CrashRecord]) -> bool:
    """True for a record without which a later comparison could end differently.

    Of the ranks that fail together with one traceback at one step, those on two nodes suffice: whatever node the next
    crash is on, one of them is another.
    """
    if len(known) >= _MOST_CRASHES and not _is_later_start(known[0], crash):
        return False  # it is older than what is kept, or was left out when that was noted
    together = [
        record
        for record in known
        if not _is_later_start(record, crash) and not _is_later_start(crash, record)
    ]
    nodes = {record.node for record in together if _what(record) == _what(crash)}
    is_known = crash.node in nodes or len(nodes) >= _NODES_KEPT
    return not is_known and len(together) < _MOST_TOGETHER


def _key(crash: CrashRecord) -> tuple[str, int]:
    return crash.pod_uid, crash.start


def _order(crash: CrashRecord) -> tuple[float, str, int]:
    return crash.time_s, crash.pod_uid, crash.start


def _what(crash: CrashRecord) -> tuple[str, int | None, int | None]:
    return crash.fingerprint, crash.step, crash.epoch


def _read(status: Status, restart_input: RestartInput) -> LogEvidence:
    return LogEvidence() if status.verdict is None else _of(status.verdict, restart_input)


def _again(status: Status, restart_input: RestartInput) -> LogEvidence:
    """Evidence of the crash that is announced now, if it is not the one that the incident began with."""
    verdict = _announced_again(status, restart_input)
    return LogEvidence() if verdict is None else _of(verdict, restart_input)


def _announced_again(status: Status, restart_input: RestartInput) -> Verdict | None:
    if restart_input.gang_verdict is None or status.since_s is None:
        return None
    verdict = restart_input.gang_verdict.verdict
    return verdict if verdict.since_s > status.since_s else None


def _of(verdict: Verdict, restart_input: RestartInput) -> LogEvidence:
    nodes = {pod.pod.uid: pod.pod.node for pod in restart_input.pods}
    return log_evidence.read(restart_input.reports, nodes, verdict, restart_input.now_s)


def why_hopeless(status: Status, earlier: Sequence[CrashRecord]) -> str | None:
    """Reason why another restart of the job would end like the last one; None while that is not known.

    `earlier`: crashes of the same job in other incidents.
    """
    if status.kind is not VerdictKind.CRASHED or not status.crashes:
        return None
    if status.failure in NOT_THE_PROGRAM:
        return None
    last = status.crashes[-1]
    before = (*earlier, *status.crashes[:-1])
    first = next((record for record in before if _is_same(record, last)), None)
    if first is None:
        return None
    place = f" at {last.place}" if last.place else ""
    when = f"at step {last.step}" if last.step is not None else "while it starts"
    text = f"the same traceback{place} {when} as before the restart ({last.fingerprint})"
    return f"{text}: a bug of the program, no further restart"


def awaits_logs(status: Status, earlier: Sequence[CrashRecord], now_s: float) -> bool:
    """True while the log of a new crash may not be fully read, in a job that crashed with a known traceback before."""
    raised = status.kind is VerdictKind.CRASHED and status.cause in RAISED
    if not raised or status.since_s is None or not earlier:
        return False
    return now_s - status.since_s < (CRASH_READ_S if status.crashes else CRASH_LOGS_S)


def awaits_logs_again(
    status: Status, earlier: Sequence[CrashRecord], restart_input: RestartInput
) -> bool:
    """As `awaits_logs`, for a crash announced during the restart of the job. `earlier` as in `why_hopeless`."""
    verdict = _announced_again(status, restart_input)
    if verdict is None or verdict.kind is not VerdictKind.CRASHED or verdict.cause not in RAISED:
        return False
    known = (*earlier, *status.crashes)
    if not known:
        return False
    read = _again(status, restart_input).crashes
    is_there = any(_is_later_start(first, last) for first in known for last in read)
    return restart_input.now_s - verdict.since_s < (CRASH_READ_S if is_there else CRASH_LOGS_S)


def _is_same(first_record: CrashRecord, last_record: CrashRecord) -> bool:
    if _what(first_record) != _what(last_record):
        return False
    if not _is_later_start(first_record, last_record):
        return False
    of_device = any(rule.startswith(_OF_DEVICES) for rule in last_record.rules)
    if of_device and first_record.node == last_record.node:
        return False
    return last_record.step is not None or (_at_start(first_record) and _at_start(last_record))


def _is_later_start(first_record: CrashRecord, last_record: CrashRecord) -> bool:
    """True if the job was restarted between two crashes: ranks that fail together are one crash."""
    if first_record.pod_uid == last_record.pod_uid:
        return last_record.start > first_record.start
    return (
        last_record.after_s is not None
        and last_record.time_s - last_record.after_s > first_record.time_s
    )


def _at_start(crash: CrashRecord) -> bool:
    return crash.after_s is not None and crash.after_s <= CRASH_AT_START_S


def work_of(status: Status, progress: LoggedProgress) -> LoggedWork | None:
    """Known cost in steps by now; the same object if nothing is new. Values of the time of the fault stay."""
    if status.work is None:
        is_known = progress.step is not None and not status.restarts
        return _work_at_fault(progress) if is_known else None
    if status.work.redone_steps is not None or not status.restarts:
        return status.work
    began_s = status.at(Phase.SHUTTING_DOWN)
    is_again = began_s is not None and progress.first_s is not None and progress.first_s > began_s
    if not is_again or progress.first_step is None or status.work.step is None:
        return status.work
    return replace(status.work, redone_steps=max(0, status.work.step - progress.first_step + 1))


def _work_at_fault(progress: LoggedProgress) -> LoggedWork:
    return LoggedWork(
        step=progress.step,
        unsaved_steps=progress.unsaved_steps,
        step_s=progress.step_s,
        loss=progress.loss,
        tokens=progress.tokens,
    )
