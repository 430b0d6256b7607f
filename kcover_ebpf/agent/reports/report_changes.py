"""Diff of a report against the previous one, ignoring ages. Pure.

A controller lets a report age by itself. So a rank in the same wait is unchanged, however long it has waited; a
rank that started another wait has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.model.collective_counts import CollectiveCounts, Recordings
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.silence_summary import StartWait
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.tunables.agent import SAME_MOMENT_S
from kcover_ebpf.tunables.links import LOST_BACKOFF

_MOVING = frozenset({State.MOVING, State.COMPUTING, State.SPINNING, State.ON_DEVICE, State.NAPPING})
"""States in which a thread runs: its position is a sample, and the next sample is another."""


def news_of(report: FaultReport) -> object:
    """The part of a report that is sent at once when it differs."""
    verdict = report.verdict
    return (
        None if verdict is None else (verdict.kind, verdict.cause, verdict.culprit),
        report.suspicious,
        bool(report.ranks),
        report.trained,
        _starters(report.start_wait),
        report.pods,
        tuple(
            (device.device, device.fault, device.fatal, device.unfit, device.pods)
            for device in report.devices
        ),
        report.over,
        tuple(
            (
                log.pod_uid,
                log.start,
                tuple(found.rule for found in log.findings),
                tuple((found.fingerprint, found.step) for found in log.tracebacks),
                tuple((reading.rule, reading.broken) for reading in log.rules),
                _saved(log),
            )
            for log in report.logs
        ),
    )


def _starters(start_wait: StartWait | None) -> object:
    """Whose wait it is, without its age."""
    return None if start_wait is None else (start_wait.ranks, start_wait.world_size)


def _saved(log: ContainerLog) -> object:
    """What a restart that waits for a checkpoint must learn before its time is over."""
    progress, phase = log.progress, log.phase
    return (
        None if progress is None else (progress.checkpoint_step, progress.saving_age_s is None),
        None if phase is None else (phase.name, phase.refused),
    )


def has_new_details(sent_report: FaultReport, report: FaultReport) -> bool:
    """True if a judge could conclude something else from `report` than from `sent_report` at its present age."""
    if sent_report is report:
        return False
    flags = (sent_report.knows_waits, sent_report.knows_cadence, sent_report.lossy)
    if flags != (report.knows_waits, report.knows_cadence, report.lossy):
        return True
    if sent_report.listens != report.listens:
        return True
    if _weight(sent_report.verdict) != _weight(report.verdict):
        return True
    if _counts(sent_report.collectives) != _counts(report.collectives):
        return True
    if _records(sent_report.recorders) != _records(report.recorders):
        return True
    later_s = report.time_s - sent_report.time_s
    if _began_anew(sent_report.resumed_age_s, report.resumed_age_s, later_s):
        return True
    return any(
        old is None or new is None or _is_another(old, new, later_s)
        for old, new in zip_longest(sent_report.ranks, report.ranks)
    )


def _weight(verdict: Verdict | None) -> object:
    """The part of a verdict that it rests on; its sentences count seconds, so they are left out."""
    if verdict is None:
        return None
    return tuple(evidence.kind for evidence in verdict.evidence), len(verdict.unobserved)


def _counts(counts: CollectiveCounts | None) -> CollectiveCounts | None:
    return None if counts is None else replace(counts, age_s=0.0, span_s=0.0, answers=0)


def _records(recordings: Recordings | None) -> Recordings | None:
    return None if recordings is None else replace(recordings, age_s=0.0)


def _is_another(old_rank: RankSnapshot, new_rank: RankSnapshot, later_s: float) -> bool:
    if _state(old_rank) != _state(new_rank):
        return True
    ages = (
        (old_rank.age_s, new_rank.age_s),
        (old_rank.sent_age_s, new_rank.sent_age_s),
    )
    if any(_began_anew(before_s, after_s, later_s) for before_s, after_s in ages):
        return True
    return any(
        before is None or after is None or _carries_another(before, after, later_s)
        for before, after in zip_longest(_significant(old_rank), _significant(new_rank))
    )


def _state(rank: RankSnapshot) -> RankSnapshot:
    """Everything that a rank does, without what changes with time or samples; connections are compared separately.

    `since` of an inert rank is left out: it starts again with every small action of the rank.
    """
    state = replace(
        rank,
        text="",
        age_s=0.0,
        threshold_s=None,
        sent_age_s=None,
        received_age_s=None,
        inert_s=None,
        effort_rate=0.0,
        effort_rates=None,
        ends_in_s=None,
        discounted=(),
        sockets=(),
        gpu=rank.gpu and replace(rank.gpu, use_age_s=0.0, power_w=None),
    )
    return replace(state, tid=None, sides_read=False, stack=()) if rank.state in _MOVING else state


def _significant(rank: RankSnapshot) -> Iterator[SocketSnapshot]:
    """Connections that matter to a judge: payload, and stuck ones."""
    found = [socket for socket in rank.sockets if socket.payload or any(_load(socket))]
    return iter(sorted(found, key=lambda socket: (str(socket.local), str(socket.remote))))


def _load(socket: SocketSnapshot) -> tuple[bool, ...]:
    """State of a connection without bytes and doublings, which grow while nothing else happens."""
    return (
        bool(socket.unread),
        bool(socket.unsent),
        bool(socket.unacked),
        socket.unsent > socket.window,
        socket.backoff >= LOST_BACKOFF,
        socket.broken_age_s is not None,
    )


def _carries_another(
    old_socket: SocketSnapshot, new_socket: SocketSnapshot, later_s: float
) -> bool:
    if (
        old_socket.local,
        old_socket.remote,
        old_socket.state,
        old_socket.payload,
        _load(old_socket),
    ) != (
        new_socket.local,
        new_socket.remote,
        new_socket.state,
        new_socket.payload,
        _load(new_socket),
    ):
        return True
    ages = ((old_socket.sent_age_s, new_socket.sent_age_s),) if new_socket.payload else ()
    broken = (old_socket.broken_age_s, new_socket.broken_age_s)
    return any(_began_anew(before_s, after_s, later_s) for before_s, after_s in (*ages, broken))


def _began_anew(before_s: float | None, after_s: float | None, later_s: float) -> bool:
    if before_s is None or after_s is None:
        return before_s is not after_s
    return abs(before_s + later_s - after_s) > SAME_MOMENT_S
