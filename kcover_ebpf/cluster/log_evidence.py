"""What the logs of a gang's pods, and how its rank ended, say about a fault that is known already. Pure.

A program writes what it likes, so nothing here makes a fault or names a culprit: it says where the cause lies, and
identifies a crash so that it is recognised when it recurs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kcover_ebpf.api.incident import CrashRecord, FailureClass
from kcover_ebpf.api.log_report import ContainerLog, LogFinding, LoggedTraceback
from kcover_ebpf.cluster.gang_snapshot import ReceivedReport
from kcover_ebpf.diagnosis.verdict import (
    RAISED,
    Cause,
    Culprit,
    Evidence,
    EvidenceKind,
    VerdictKind,
)
from kcover_ebpf.logs import exit_codes
from kcover_ebpf.tunables.recovery import LOG_BEFORE_FAULT_S, TRACEBACK_AFTER_S, TRACEBACK_BEFORE_S

_MOST_LINES = 4
_CERTAIN: Mapping[VerdictKind | Cause, FailureClass] = {
    VerdictKind.DEVICE_FAULT: FailureClass.HARDWARE,
    VerdictKind.LOST_LINK: FailureClass.NETWORK,
    Cause.PEER_GONE: FailureClass.HARDWARE,
    Cause.DRIVER_STUCK: FailureClass.HARDWARE,
    Cause.STORAGE: FailureClass.STORAGE,
    Cause.OOM_KILLED: FailureClass.PROGRAM,
    Cause.COLLECTIVE_MISMATCH: FailureClass.PROGRAM,
}
"""Where the kernel, a driver or the control plane say it, a log says nothing against it."""
_BY_DOMAIN: Mapping[str, FailureClass] = {
    "hardware": FailureClass.HARDWARE,
    "driver": FailureClass.HARDWARE,
    "network": FailureClass.NETWORK,
    "storage": FailureClass.STORAGE,
    "memory": FailureClass.PROGRAM,
    "program": FailureClass.PROGRAM,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is known about a fault without the logs; `since_s` in unix seconds by our clock."""

    kind: VerdictKind
    cause: Cause
    since_s: float
    culprit: Culprit | None


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """What logs add to it."""

    failure: FailureClass = FailureClass.UNKNOWN
    evidence: tuple[Evidence, ...] = ()
    crashes: tuple[CrashRecord, ...] = ()
    """Program errors whose traceback is known, the newest last; several where the gang crashed again."""


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of one start of a container, on our clock."""

    seen: ReceivedReport
    log: ContainerLog
    made_s: float
    """Unix seconds by our clock of the report's own time: its ages count back from then."""

    def near(self, age_s: float, fault: Fault) -> bool:
        """True for what may belong to the fault; what is younger may be a crash of the next start."""
        return self.made_s - age_s >= fault.since_s - LOG_BEFORE_FAULT_S

    def root(self, fault: Fault) -> LoggedTraceback | None:
        """The first traceback of the crash: what follows is written by who noticed it."""
        return next(
            (
                each
                for each in self.log.tracebacks
                if not each.secondary and self.near(each.age_s, fault)
            ),
            None,
        )


def read(
    seen: Sequence[ReceivedReport], nodes: Mapping[str, str], fault: Fault, now_s: float
) -> LogEvidence:
    """What the logs say; `nodes`: uid of each pod of the gang to its node. Reports about other pods do not count."""
    logs = [
        _Log(each, log, now_s - each.since_made_s(now_s))
        for each in seen
        for log in each.report.logs
        if nodes.get(log.pod_uid) == each.report.node
    ]
    blamed = _of_culprit(logs, fault)
    exit_code = _exit_code(seen, fault)
    findings = [each for log in blamed for each in _findings(log, fault)]
    roots = [root for log in blamed if (root := log.root(fault)) is not None]
    return LogEvidence(
        failure=_failure(fault, findings, roots, exit_code),
        evidence=tuple(_lines(blamed, fault, exit_code))[:_MOST_LINES],
        crashes=_crashes(blamed, fault),
    )


def _of_culprit(logs: Sequence[_Log], fault: Fault) -> list[_Log]:
    """The logs of the culprit's pod; where there is none, those of all that raised one and the same error.

    Who lost a connection may have lost it to the rank that failed: such errors count only where there are no others.
    """
    uid = fault.culprit.pod_uid if fault.culprit is not None else None
    if uid is not None:
        return [each for each in logs if each.log.pod_uid == uid]
    roots = [(log, root) for log in logs if (root := log.root(fault)) is not None]
    own = [(log, root) for log, root in roots if root.domain != "network"] or roots
    return [log for log, _ in own] if len({root.fingerprint for _, root in own}) == 1 else []


def _findings(log: _Log, fault: Fault) -> list[LogFinding]:
    return [each for each in log.log.findings if log.near(each.age_s, fault)]


def _failure(
    fault: Fault,
    findings: Sequence[LogFinding],
    roots: Sequence[LoggedTraceback],
    exit_code: exit_codes.ExitCode | None,
) -> FailureClass:
    certain = _CERTAIN.get(fault.kind) or _CERTAIN.get(fault.cause)
    if certain is not None:
        return certain
    relevant = [
        each for each in findings if not each.generic and each.severity in ("fatal", "error")
    ]
    # a broken device raises errors of any class in the program
    domains = [each.domain for each in relevant if each.domain == "hardware"]
    domains += [each.domain for each in roots]
    domains += [each.domain for each in relevant]
    for domain in domains:
        if domain in _BY_DOMAIN:
            return _BY_DOMAIN[domain]
    return exit_code.failure if exit_code is not None else FailureClass.UNKNOWN


def _lines(
    logs: Sequence[_Log], fault: Fault, exit_code: exit_codes.ExitCode | None
) -> Iterator[Evidence]:
    for log in logs:
        node = log.seen.report.node
        pod = {each.uid: each.name for each in log.seen.report.pods}.get(log.log.pod_uid, "?")
        if (root := log.root(fault)) is not None:
            place = f" at {root.place}" if root.place else ""
            step = f", step {root.step}" if root.step is not None else ""
            text = f"log of pod {pod}: traceback {root.fingerprint}{place}{step} ({root.rule})"
            yield Evidence(EvidenceKind.LOG, text, node)
        for each in _findings(log, fault)[:2]:
            text = f"log of pod {pod}: {each.meaning} ({each.rule}, {each.domain}); {each.advice}"
            yield Evidence(EvidenceKind.LOG, text[:1024], node)
    if exit_code is not None and fault.kind is VerdictKind.CRASHED:
        text = f"exit code {exit_code.code}: {exit_code.meaning}; {exit_code.advice}"
        yield Evidence(EvidenceKind.LOG, text, fault.culprit.node if fault.culprit else None)


def _crashes(logs: Sequence[_Log], fault: Fault) -> tuple[CrashRecord, ...]:
    if fault.kind is not VerdictKind.CRASHED or fault.cause not in RAISED:
        return ()
    found = [crash for log in logs if (crash := _crash(log, fault)) is not None]
    return tuple(sorted(found, key=lambda each: (each.time_s, each.pod_uid, each.start)))


def _crash(log: _Log, fault: Fault) -> CrashRecord | None:
    """What identifies the crash: all that the program raised then, for one of it may be raised in each start."""
    early_s, late_s = fault.since_s - TRACEBACK_BEFORE_S, fault.since_s + TRACEBACK_AFTER_S
    raised = [
        each
        for each in log.log.tracebacks
        if not each.secondary
        and each.domain == "program"
        and early_s <= log.made_s - each.age_s <= late_s
    ]
    if not raised:
        return None
    last = raised[-1]
    return CrashRecord(
        fingerprint="+".join(sorted({each.fingerprint[:16] for each in raised}))[:80],
        rules=tuple(sorted({each.rule[:64] for each in raised})),
        pod_uid=log.log.pod_uid,
        start=log.log.start,
        time_s=log.made_s - last.age_s,
        node=log.seen.report.node,
        place=last.place,
        step=last.step,
        epoch=last.epoch,
        after_s=last.after_s,
    )


def _exit_code(seen: Sequence[ReceivedReport], fault: Fault) -> exit_codes.ExitCode | None:
    """What the table says about how the culprit ended."""
    culprit = fault.culprit
    if culprit is None or culprit.pid is None or culprit.pod_uid is None:
        return None
    for each in seen:
        for rank in each.report.ranks:
            if (rank.pod_uid, rank.pid) == (culprit.pod_uid, culprit.pid) and rank.exit:
                return exit_codes.of_end(rank.exit)
    return None
