"""What of a report is new to whoever has the one before: the news, the details, and not how much older all is. Pure.

A controller lets a report age by itself. So a rank that waits as it did is the same, however long it has waited; one
whose wait began anew is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.diagnosis.collective_counts import CollectiveCounts
from kcover_ebpf.diagnosis.process_state import State
from kcover_ebpf.diagnosis.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.diagnosis.recorders import Recordings
from kcover_ebpf.diagnosis.verdict import Verdict
from kcover_ebpf.tunables.agent import SAME_MOMENT_S
from kcover_ebpf.tunables.diagnosis import LOST_BACKOFF

_MOVING = frozenset({State.MOVING, State.COMPUTING, State.SPINNING, State.ON_DEVICE, State.NAPPING})
"""Threads in these states run: the place where one was found is a sample, and the next one is another."""


def news_of(report: FaultReport) -> object:
    """What is sent at once when it differs."""
    said = report.verdict
    return (
        None if said is None else (said.kind, said.cause, said.culprit),
        report.suspicious,
        bool(report.ranks),
        report.trained,
        report.pods,
        tuple(
            (each.device, each.fault, each.fatal, each.unfit, each.pods) for each in report.devices
        ),
        tuple(each.uid for each in report.idle),
        tuple(
            (
                each.pod_uid,
                each.start,
                tuple(found.rule for found in each.findings),
                tuple((found.fingerprint, found.step) for found in each.tracebacks),
                tuple((reading.rule, reading.broken) for reading in each.rules),
            )
            for each in report.logs
        ),
    )


def has_new_details(sent: FaultReport, now: FaultReport) -> bool:
    """True where a judge could conclude something else from `now` than from `sent`, as old as it is by now."""
    if sent is now:
        return False
    flags = (sent.knows_waits, sent.knows_cadence, sent.lossy)
    if flags != (now.knows_waits, now.knows_cadence, now.lossy):
        return True
    if _weight(sent.verdict) != _weight(now.verdict):
        return True
    if _counts(sent.collectives) != _counts(now.collectives):
        return True
    if _records(sent.recorders) != _records(now.recorders):
        return True
    later_s = now.time_s - sent.time_s
    return any(
        old is None or new is None or _is_another(old, new, later_s)
        for old, new in zip_longest(sent.ranks, now.ranks)
    )


def _weight(verdict: Verdict | None) -> object:
    """What a verdict rests on; its sentences count seconds."""
    if verdict is None:
        return None
    return tuple(each.kind for each in verdict.evidence), len(verdict.unobserved)


def _counts(counts: CollectiveCounts | None) -> CollectiveCounts | None:
    return None if counts is None else replace(counts, age_s=0.0, span_s=0.0, answers=0)


def _records(seen: Recordings | None) -> Recordings | None:
    return None if seen is None else replace(seen, age_s=0.0)


def _is_another(old: RankSnapshot, new: RankSnapshot, later_s: float) -> bool:
    if _state(old) != _state(new):
        return True
    ages = (old.age_s, new.age_s), (old.sent_age_s, new.sent_age_s)
    if any(_began_anew(before_s, after_s, later_s) for before_s, after_s in ages):
        return True
    return any(
        before is None or after is None or _carries_another(before, after, later_s)
        for before, after in zip_longest(_significant(old), _significant(new))
    )


def _state(rank: RankSnapshot) -> object:
    return (
        rank.pid,
        rank.pod_uid,
        rank.role,
        rank.state,
        rank.rank,
        rank.world_size,
        rank.proven,
        rank.effort,
        rank.timed,
        rank.thread_read,
        rank.waits_for,
        () if rank.state in _MOVING else rank.stack,
        rank.python,
        rank.known_wait,
        rank.joined,
        rank.exit,
        rank.stop_signal,
        rank.network_busy,
        None if rank.gpu is None else (rank.gpu.devices, rank.gpu.use),
    )


def _significant(rank: RankSnapshot) -> Iterator[SocketSnapshot]:
    """Connections that a judge reads something from: payload, and what is stuck."""
    found = [each for each in rank.sockets if each.payload or any(_load(each))]
    return iter(sorted(found, key=lambda each: (str(each.local), str(each.remote))))


def _load(each: SocketSnapshot) -> tuple[bool, ...]:
    """Which limits it is beyond: bytes and doublings grow while nothing else happens."""
    return (
        bool(each.unread),
        bool(each.unsent),
        bool(each.unacked),
        each.unsent > each.window,
        each.backoff >= LOST_BACKOFF,
        each.broken_age_s is not None,
    )


def _carries_another(old: SocketSnapshot, new: SocketSnapshot, later_s: float) -> bool:
    if (old.local, old.remote, old.state, old.payload, _load(old)) != (
        new.local,
        new.remote,
        new.state,
        new.payload,
        _load(new),
    ):
        return True
    ages = ((old.sent_age_s, new.sent_age_s),) if new.payload else ()
    broken = (old.broken_age_s, new.broken_age_s)
    return any(_began_anew(before_s, after_s, later_s) for before_s, after_s in (*ages, broken))


def _began_anew(before_s: float | None, after_s: float | None, later_s: float) -> bool:
    if before_s is None or after_s is None:
        return before_s is not after_s
    return abs(before_s + later_s - after_s) > SAME_MOMENT_S
