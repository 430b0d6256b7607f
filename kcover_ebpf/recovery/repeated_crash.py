"""Whether a crash is the one before it once more: the same traceback at the same step is a bug of the program. Pure.

A restart does not mend such a program, it costs the time of the whole job. The records of crashes are part of the
status of incidents, so that another controller knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.api.incident import CrashRecord, FailureClass, Status
from kcover_ebpf.cluster import log_evidence
from kcover_ebpf.cluster.log_evidence import Fault, LogEvidence
from kcover_ebpf.diagnosis.verdict import RAISED, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.context import RestartInput
from kcover_ebpf.tunables.recovery import CRASH_AT_START_S, CRASH_LOGS_S, CRASH_READ_S

_MOST_CRASHES = 16
_MOST_EVIDENCE = 64
_OF_DEVICES = ("cuda_", "loss_not_finite", "anomaly_detected")
"""Rules (or how their names begin) whose errors a bad device, or memory that another process left occupied, causes as
well: they count as the same bug only on another node."""


def with_logs(status: Status, world: RestartInput) -> Status:
    """The status with what the logs of the job's pods say by now; the same object if that is nothing new."""
    found = _read(status, world)
    crashes = _updated(status.crashes, (*found.crashes, *_again(status, world)))
    # described once, as it was at the fault
    is_described = any(each.kind is EvidenceKind.LOG for each in status.evidence)
    lines = () if is_described else found.evidence
    is_known = status.failure not in (None, FailureClass.UNKNOWN)
    is_new = not is_known and found.failure is not FailureClass.UNKNOWN
    failure = found.failure if is_new else status.failure
    if crashes == status.crashes and not lines and failure is status.failure:
        return status
    return replace(
        status,
        failure=failure,
        evidence=(*status.evidence, *lines)[:_MOST_EVIDENCE],
        crashes=crashes[-_MOST_CRASHES:],
    )


def _updated(known: Sequence[CrashRecord], read: Sequence[CrashRecord]) -> tuple[CrashRecord, ...]:
    """Those known, each as its log shows it by now, and the new ones: a log is not read to its end at once."""
    crashes = {(each.pod_uid, each.start): each for each in known}
    shown: dict[tuple[str, int], CrashRecord] = {}
    for each in read:
        shown.setdefault((each.pod_uid, each.start), each)
    for key, each in shown.items():
        before = crashes.get(key)
        if before is None or _what(before) != _what(each):
            crashes[key] = each
    return tuple(crashes.values())


def _what(crash: CrashRecord) -> tuple[str, int | None, int | None]:
    return crash.fingerprint, crash.step, crash.epoch


def _read(status: Status, world: RestartInput) -> LogEvidence:
    if status.verdict is None or status.cause is None or status.since_s is None:
        return LogEvidence()
    return _of(Fault(status.verdict, status.cause, status.since_s, status.culprit), world)


def _again(status: Status, world: RestartInput) -> tuple[CrashRecord, ...]:
    """The crash that is announced now, where it is not the one that the incident began with."""
    if world.merged is None or status.since_s is None:
        return ()
    verdict = world.merged.verdict
    if verdict.since_s <= status.since_s:
        return ()
    return _of(Fault(verdict.kind, verdict.cause, verdict.since_s, verdict.culprit), world).crashes


def _of(fault: Fault, world: RestartInput) -> LogEvidence:
    nodes = {each.pod.uid: each.pod.node for each in world.pods}
    return log_evidence.read(world.reports, nodes, fault, world.now_s)


def why_hopeless(status: Status, earlier: Sequence[CrashRecord]) -> str | None:
    """Why another restart of the job would end as the last one did; None while that is not known.

    `earlier`: crashes of the same job in other incidents.
    """
    if status.verdict is not VerdictKind.CRASHED or not status.crashes:
        return None
    last = status.crashes[-1]
    before = (*earlier, *status.crashes[:-1])
    first = next((each for each in before if _is_same(each, last)), None)
    if first is None:
        return None
    place = f" at {last.place}" if last.place else ""
    when = f"at step {last.step}" if last.step is not None else "while it starts"
    text = f"the same traceback{place} {when} as before the restart ({last.fingerprint})"
    return f"{text}: a bug of the program, no further restart"


def awaits_logs(status: Status, earlier: Sequence[CrashRecord], now_s: float) -> bool:
    """True while a job that crashed with a known traceback before has just crashed: its log may not be all read yet."""
    raised = status.verdict is VerdictKind.CRASHED and status.cause in RAISED
    if not raised or status.since_s is None or not earlier:
        return False
    return now_s - status.since_s < (CRASH_READ_S if status.crashes else CRASH_LOGS_S)


def _is_same(first: CrashRecord, last: CrashRecord) -> bool:
    if _what(first) != _what(last):
        return False
    if not _is_later_start(first, last):
        return False
    of_device = any(each.startswith(_OF_DEVICES) for each in last.rules)
    if of_device and first.node == last.node:
        return False
    return last.step is not None or (_at_start(first) and _at_start(last))


def _is_later_start(first: CrashRecord, last: CrashRecord) -> bool:
    """True if the job was started again between two crashes: ranks that fail together are one crash."""
    if first.pod_uid == last.pod_uid:
        return last.start > first.start
    return last.after_s is not None and last.time_s - last.after_s > first.time_s


def _at_start(crash: CrashRecord) -> bool:
    return crash.after_s is not None and crash.after_s <= CRASH_AT_START_S
