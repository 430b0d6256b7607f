"""Evidence from the logs of a gang's pods, and from how its rank ended, about a fault that is already known. Pure.

A program can print anything, so nothing here creates a fault or names a culprit. It says where the cause lies, and
identifies a crash so that a repetition is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from kcover_ebpf.api.incident_parts import CrashRecord
from kcover_ebpf.api.log_report import ContainerLog, LogFinding, LoggedTraceback
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.gang import job_rules
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.gang.job_rules import LoggedProgress
from kcover_ebpf.logs import exit_codes
from kcover_ebpf.model.verdict import (
    RAISED,
    Cause,
    Evidence,
    EvidenceKind,
    FailureClass,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.tunables.recovery import LOG_BEFORE_FAULT_S, TRACEBACK_AFTER_S, TRACEBACK_BEFORE_S

_MOST_LINES = 4
_SEVERAL = 3
"""Logs with relevant lines from which on one line is shown for all: two may be those of a culprit and a witness."""
_CERTAIN: Mapping[VerdictKind | Cause, FailureClass] = {
    VerdictKind.DEVICE_FAULT: FailureClass.HARDWARE,
    VerdictKind.LOST_LINK: FailureClass.NETWORK,
    Cause.PEER_GONE: FailureClass.HARDWARE,
    Cause.DRIVER_STUCK: FailureClass.HARDWARE,
    Cause.STORAGE: FailureClass.STORAGE,
    Cause.OOM_KILLED: FailureClass.PROGRAM,
    Cause.COLLECTIVE_MISMATCH: FailureClass.PROGRAM,
}
"""If the kernel, a driver or the control plane names the class of failure, no log contradicts it."""
_BY_DOMAIN: Mapping[str, FailureClass] = {
    "hardware": FailureClass.HARDWARE,
    "driver": FailureClass.HARDWARE,
    "network": FailureClass.NETWORK,
    "storage": FailureClass.STORAGE,
    "memory": FailureClass.PROGRAM,
    "program": FailureClass.PROGRAM,
}
_OUTSIDE = ("hardware", "driver", "network", "storage")
"""Domains of findings near a crash because of which its traceback does not prove a bug of the program."""
_ENDED = "outside"
"""Domain of lines which say that a scheduler, a launcher or a person ended the run."""


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """What logs add to a verdict."""

    failure: FailureClass = FailureClass.UNKNOWN
    evidence: tuple[Evidence, ...] = ()
    crashes: tuple[CrashRecord, ...] = ()
    """Program errors with a known traceback, newest last; several if the gang crashed again."""
    no_bugs: frozenset[tuple[str, int]] = frozenset()
    """Uid of the pod and start of each crash whose log shows a cause outside of the program."""
    progress: LoggedProgress = field(default_factory=LoggedProgress)


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of one start of a container, on our clock."""

    received: ReceivedReport
    log: ContainerLog
    made_s: float
    """Unix seconds by our clock of the report's own time; ages in the log count back from it."""

    def near(self, age_s: float, verdict: Verdict) -> bool:
        """True for lines that may belong to the fault; younger ones may be a crash of the next start."""
        return self.made_s - age_s >= verdict.since_s - LOG_BEFORE_FAULT_S

    def root(self, verdict: Verdict) -> LoggedTraceback | None:
        """The first traceback of the crash; later ones may be consequences. None if there is none."""
        return next(iter(self.raised(verdict)), None)

    def raised(self, verdict: Verdict) -> list[LoggedTraceback]:
        """The tracebacks of the crash, without those that only report the loss of the rank that raised before.

        Any of them may be the cause: an error that wraps another is logged before or after it.
        """
        all_raised = sorted(
            (
                traceback
                for traceback in self.log.tracebacks
                if not traceback.secondary and self.near(traceback.age_s, verdict)
            ),
            key=lambda traceback: -traceback.age_s,
        )
        own = [at for at, traceback in enumerate(all_raised) if not traceback.follows]
        return all_raised[: own[-1] + 1] if own else all_raised

    @property
    def pod_name(self) -> str:
        """Name of the pod in its report; "?" if the report does not name it."""
        names = {pod.uid: pod.name for pod in self.received.report.pods}
        return names.get(self.log.pod_uid, "?")

    def speaks(self, verdict: Verdict) -> bool:
        """True if it shows anything near the fault."""
        return bool(self.raised(verdict) or self.findings(verdict))

    def findings(self, verdict: Verdict) -> list[LogFinding]:
        """Findings in lines near the fault."""
        return [finding for finding in self.log.findings if self.near(finding.age_s, verdict)]


def read(
    seen: Sequence[ReceivedReport], nodes: Mapping[str, str], verdict: Verdict, now_s: float
) -> LogEvidence:
    """Evidence in the logs about the fault in `verdict`, whose times are unix seconds by our clock.

    `nodes`: uid of each pod of the gang to its node. Reports about other pods do not count.
    """
    logs = [
        _Log(received, log, now_s - received.since_made_s(now_s))
        for received in seen
        for log in received.report.logs
        if nodes.get(log.pod_uid) == received.report.node
    ]
    blamed = _of_culprit(logs, verdict)
    exit_code = _exit_code(seen, verdict)
    findings = [finding for log in blamed for finding in log.findings(verdict)]
    raised = [log.raised(verdict) for log in blamed]
    crashes, no_bugs = _crashes(blamed, verdict)
    first = _first_cause(blamed, logs, verdict) or _first_cause(logs, logs, verdict)
    progress = job_rules.progress(seen, nodes, now_s)
    said = [_cause_line(first, logs, verdict)] if first is not None else _lines(blamed, verdict)
    return LogEvidence(
        failure=_failure(verdict, findings, raised, exit_code),
        evidence=(*said, *_exit_line(verdict, exit_code))[:_MOST_LINES]
        + _progress_line(progress, verdict),
        crashes=crashes,
        no_bugs=no_bugs,
        progress=progress,
    )


def _of_culprit(logs: Sequence[_Log], verdict: Verdict) -> list[_Log]:
    """The logs of the culprit's pod; if there is no culprit, those of all that raised one and the same error.

    A rank that lost a connection may have lost it to the rank that failed: such errors count only if there are no
    others.
    """
    uid = verdict.culprit.pod_uid if verdict.culprit is not None else None
    if uid is not None:
        return [log for log in logs if log.log.pod_uid == uid]
    roots = [(log, root) for log in logs if (root := log.root(verdict)) is not None]
    own = [(log, root) for log, root in roots if root.domain != "network"] or roots
    return [log for log, _ in own] if len({root.fingerprint for _, root in own}) == 1 else []


def _explains(finding: LogFinding) -> bool:
    return not finding.generic and finding.severity in ("fatal", "error")


def _failure(
    verdict: Verdict,
    findings: Sequence[LogFinding],
    raised: Sequence[Sequence[LoggedTraceback]],
    exit_code: exit_codes.ExitCode | None,
) -> FailureClass:
    certain = _CERTAIN.get(verdict.kind) or _CERTAIN.get(verdict.cause)
    if certain is not None:
        return certain
    relevant = [finding for finding in findings if _explains(finding)]
    # a broken device causes errors of any class in the program
    domains = [finding.domain for finding in relevant if finding.domain == "hardware"]
    # an error that wraps another says less than the wrapped one
    domains += [traceback.domain for log in raised for traceback in log if not traceback.generic]
    roots = [log[0] for log in raised if log]
    if all(root.generic for root in roots):
        # a generic error names the cause only if nothing else was raised before it
        of_peers = [finding for finding in relevant if finding.follows]
        others = [finding for finding in relevant if not finding.follows]
        domains += [finding.domain for finding in others]
        # findings about a peer explain an error of NCCL, but are a consequence of a program error
        domains += [
            traceback.domain for log in raised for traceback in log if traceback.domain != "program"
        ]
        domains += [root.domain for root in roots]
        domains += [finding.domain for finding in of_peers]
    for domain in domains:
        if domain in _BY_DOMAIN:
            return _BY_DOMAIN[domain]
    return exit_code.failure if exit_code is not None else FailureClass.UNKNOWN


@dataclass(frozen=True, slots=True)
class _FirstCause:
    """The earliest sign of one rank that has its own reason."""

    log: _Log
    time_s: float
    """Unix seconds by our clock; between nodes as exact as the reports' times, about a second."""
    reason: LoggedTraceback | LogFinding


def _first_cause(
    logs: Sequence[_Log], all_logs: Sequence[_Log], verdict: Verdict
) -> _FirstCause | None:
    """The earliest independent sign in `logs`; None if there is none, or too few of all logs have one.

    Many ranks print when one fails. A rank that reports a lost peer, or that a launcher ended it, is a victim, however
    early it prints. Of the other signs the earliest is the cause.
    """
    if sum(log.speaks(verdict) for log in all_logs) < _SEVERAL:
        return None
    signs = [
        _FirstCause(log, log.made_s - root.age_s, root)
        for log in logs
        if (root := log.root(verdict)) is not None and not root.follows
    ]
    signs += [
        _FirstCause(log, log.made_s - (finding.first_age_s or finding.age_s), finding)
        for log in logs
        for finding in log.findings(verdict)
        if _explains(finding) and not finding.follows
    ]
    return min(signs, key=lambda sign: sign.time_s, default=None)


def _cause_line(first: _FirstCause, logs: Sequence[_Log], verdict: Verdict) -> Evidence:
    """One line of evidence for all ranks that printed."""
    others = [log for log in logs if log is not first.log and log.speaks(verdict)]
    reason = first.reason
    if isinstance(reason, LoggedTraceback):
        same = sum(
            1
            for log in others
            if (root := log.root(verdict)) is not None and root.fingerprint == reason.fingerprint
        )
        rank = f" rank {reason.rank}" if reason.rank is not None else ""
        what = _raised_text(reason)
    else:
        same = sum(
            1
            for log in others
            if reason.rule in {finding.rule for finding in log.findings(verdict)}
        )
        rank, what = "", f"{reason.meaning} ({reason.rule}, {reason.domain}); {reason.advice}"
    alike = f", as in {same} others" if same else ""
    after = len(others) - same
    victims = f"; {after} others followed" if after else ""
    text = f"log of pod {first.log.pod_name}{rank}: first cause: {what}{alike}{victims}"
    return Evidence(EvidenceKind.LOG, text[:1024], first.log.received.report.node)


def _raised_text(traceback: LoggedTraceback) -> str:
    place = f" at {traceback.place}" if traceback.place else ""
    step = f", step {traceback.step}" if traceback.step is not None else ""
    return f"traceback {traceback.fingerprint}{place}{step} ({traceback.rule})"


def _lines(logs: Sequence[_Log], verdict: Verdict) -> Iterator[Evidence]:
    for log in logs:
        node = log.received.report.node
        if (root := log.root(verdict)) is not None:
            yield Evidence(
                EvidenceKind.LOG, f"log of pod {log.pod_name}: {_raised_text(root)}", node
            )
        for finding in log.findings(verdict)[:2]:
            text = f"log of pod {log.pod_name}: {finding.meaning} ({finding.rule}, {finding.domain}); {finding.advice}"
            yield Evidence(EvidenceKind.LOG, text[:1024], node)


def _exit_line(verdict: Verdict, exit_code: exit_codes.ExitCode | None) -> tuple[Evidence, ...]:
    if exit_code is None or verdict.kind is not VerdictKind.CRASHED:
        return ()
    text = f"exit code {exit_code.code}: {exit_code.meaning}; {exit_code.advice}"
    return (Evidence(EvidenceKind.LOG, text, verdict.culprit.node if verdict.culprit else None),)


def _progress_line(progress: LoggedProgress, verdict: Verdict) -> tuple[Evidence, ...]:
    """How far the training had come, which shows what a restart costs; empty if there is no fault or no step."""
    if not verdict.kind.is_fault or progress.step is None:
        return ()
    words = [f"the last printed step is {progress.step}"]
    if progress.moved_s is not None:
        words.append(f"{max(0.0, verdict.since_s - progress.moved_s):.0f} s before the fault")
    if progress.unsaved_steps is not None:
        words.append(f"{progress.unsaved_steps} steps since the last checkpoint")
    if progress.redone_steps:
        words.append(f"{progress.redone_steps} of them were repeated after a restart")
    if progress.phase_until_s is not None and progress.phase_until_s > verdict.since_s:
        left_s = progress.phase_until_s - verdict.since_s
        words.append(f"a phase that the program announced had {left_s:.0f} s left")
    return (Evidence(EvidenceKind.LOG, f"logs: {', '.join(words)}"),)


def _crashes(
    logs: Sequence[_Log], verdict: Verdict
) -> tuple[tuple[CrashRecord, ...], frozenset[tuple[str, int]]]:
    """The crashes that may be bugs of the program, and the pod and start of each crash that is none."""
    if verdict.kind is not VerdictKind.CRASHED or verdict.cause not in RAISED:
        return (), frozenset()
    no_bugs = frozenset(
        (log.log.pod_uid, log.log.start) for log in logs if _has_cause_outside(log, verdict)
    )
    found = [
        crash
        for log in logs
        if (log.log.pod_uid, log.log.start) not in no_bugs
        and (crash := _crash(log, verdict)) is not None
    ]
    by_time = sorted(found, key=lambda record: (record.time_s, record.pod_uid, record.start))
    return tuple(by_time), no_bugs


def _has_cause_outside(log: _Log, verdict: Verdict) -> bool:
    """True if the errors may follow from a failure of a node, the network or a storage.

    An error that wraps such an error is one of the program by its class, and is the same in each start.
    """
    if any(traceback.domain != "program" for traceback in _raised(log, verdict)):
        return True
    findings = log.findings(verdict)
    if any(
        _explains(finding) and finding.domain in _OUTSIDE and not finding.follows
        for finding in findings
    ):
        return True
    root = log.root(verdict)
    # a launcher ends the other ranks once one has failed: only a line before the error counts as
    # the reason
    return root is not None and any(
        finding.domain == _ENDED and (finding.first_age_s or finding.age_s) >= root.age_s
        for finding in findings
    )


def _raised(log: _Log, verdict: Verdict) -> list[LoggedTraceback]:
    """Tracebacks that the program raised when it ended."""
    early_s, late_s = verdict.since_s - TRACEBACK_BEFORE_S, verdict.since_s + TRACEBACK_AFTER_S
    return [
        traceback
        for traceback in log.raised(verdict)
        if early_s <= log.made_s - traceback.age_s <= late_s
    ]


def _crash(log: _Log, verdict: Verdict) -> CrashRecord | None:
    """The identity of the crash: all tracebacks of that moment, because single ones may occur in each start.

    None if none.
    """
    raised = _raised(log, verdict)
    if not raised:
        return None
    last = raised[-1]
    return CrashRecord(
        fingerprint="+".join(sorted({traceback.fingerprint[:16] for traceback in raised}))[:80],
        rules=tuple(sorted({traceback.rule[:64] for traceback in raised})),
        pod_uid=log.log.pod_uid,
        start=log.log.start,
        time_s=log.made_s - last.age_s,
        node=log.received.report.node,
        place=last.place,
        step=last.step,
        epoch=last.epoch,
        after_s=last.after_s,
    )


def _exit_code(seen: Sequence[ReceivedReport], verdict: Verdict) -> exit_codes.ExitCode | None:
    """Meaning of the culprit's exit code; None if unknown."""
    culprit = verdict.culprit
    if culprit is None or culprit.pid is None or culprit.pod_uid is None:
        return None
    for received in seen:
        for rank in received.report.ranks:
            if (rank.pod_uid, rank.pid) == (culprit.pod_uid, culprit.pid) and rank.exit:
                return exit_codes.of_end(rank.exit)
    return None
