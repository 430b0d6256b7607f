"""Completes the snapshot of a process by what else this host knows: thresholds, connections, stop signal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest

from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.stacks import KnownWaits
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex, last_send_ns
from kcover_ebpf.facts.kernel import SignalSent, SocketSample
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.ids import NS, Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import GpuSnapshot, RankSnapshot, SocketSnapshot, StopSignal
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.host import LINKS_OF_A_RANK


@dataclass(frozen=True, slots=True)
class Habits:
    """What was learned about the whole job, for the snapshots of its processes."""

    now_ns: int
    ends: EndpointIndex
    known: KnownWaits
    thresholds_s: Mapping[Pid, float]
    """Stall threshold in seconds of each living rank."""
    stop_signals: Mapping[Pid, SignalSent]
    world_size: int | None
    python: Mapping[Pid, tuple[PythonFrame, ...]]
    """Python frames of the ranks that were read."""
    sends_alike: bool | None = None
    """Whether all ranks sent at the same time while healthy, as in `RankSnapshot`; None if unknown."""


def completed(rank: RankSnapshot, process: ProcessHistory, habits: Habits) -> RankSnapshot:
    """The snapshot of a process, completed by everything else that is known about it."""
    is_rank, talks = rank.role is Role.RANK, bool(process.sockets)
    return replace(
        rank,
        world_size=habits.world_size if is_rank else None,
        pid_inside=process.seen.pid_inside if is_rank and process.seen is not None else 0,
        threshold_s=habits.thresholds_s.get(rank.pid),
        sent_age_s=_age_s(habits, last_send_ns(process, habits.ends) if talks else process.sent_ns),
        received_age_s=_age_s(habits, process.peer_bytes_ns),
        python=habits.python.get(rank.pid, ()) if is_rank else (),
        known_wait=_is_known(rank, process, habits),
        inert_s=_age_s(habits, process.active_ns) if is_rank else None,
        rests=is_rank and process.rests,
        sends_alike=habits.sends_alike if is_rank else None,
        joined=is_rank and process.membership is not None and process.membership.joined,
        stop_signal=_stop_signal(habits.stop_signals.get(rank.pid)),
        sockets=_sockets(process, habits) if is_rank and talks else (),
        network_busy=_network_busy(process),
        gpu=_gpu(process, habits.now_ns) if is_rank else None,
    )


def _is_known(rank: RankSnapshot, process: ProcessHistory, habits: Habits) -> bool:
    if rank.state is State.NAPPING:
        return process.naps_while_healthy
    return bool(rank.stack) and habits.known.knows(rank.stack)


def _age_s(habits: Habits, at_ns: int) -> float | None:
    return (habits.now_ns - at_ns) / NS if at_ns else None


def _stop_signal(sent: SignalSent | None) -> StopSignal | None:
    if sent is None:
        return None
    return StopSignal(sent.signal, sent.sender_pid, sent.sender_comm or None, sent.from_outside)


def _network_busy(process: ProcessHistory) -> bool | None:
    threads = [thread for thread in process.side_threads if thread.proxy]
    return any(thread.burning_since_ns is not None for thread in threads) if threads else None


def _gpu(process: ProcessHistory, now_ns: int) -> GpuSnapshot | None:
    seen = process.gpus.seen
    if seen is None:
        return None
    return GpuSnapshot(seen.devices, seen.use, (now_ns - seen.use_since_ns) / NS, seen.power_w)


def _sockets(process: ProcessHistory, habits: Habits) -> tuple[SocketSnapshot, ...]:
    payload = set(habits.ends.payload_fds(process))
    return tuple(
        _socket(process, sample, habits, is_payload=sample.fd in payload)
        for sample in _shown(process.connections, payload)
    )


def _shown(samples: Sequence[SocketSample], payload: Collection[int]) -> Sequence[SocketSample]:
    """All connections, or of very many those that matter for the judgement: the rest is idle and carries no payload."""
    if len(samples) <= LINKS_OF_A_RANK:
        return samples
    judged = [sample for sample in samples if sample.fd in payload or _is_loaded(sample)]
    judged.sort(key=lambda sample: (sample.fd not in payload, -sample.backoff))
    idle = (sample for sample in samples if sample.fd not in payload and not _is_loaded(sample))
    room = max(0, LINKS_OF_A_RANK - len(judged))
    newest = nlargest(room, idle, key=lambda sample: sample.last_send_ns)
    return (judged + newest)[:LINKS_OF_A_RANK]


def _is_loaded(sample: SocketSample) -> bool:
    waiting = sample.unread_bytes or sample.unsent_bytes or sample.unacked_bytes
    return bool(waiting or sample.backoff)


def _socket(
    process: ProcessHistory, sample: SocketSample, habits: Habits, *, is_payload: bool
) -> SocketSnapshot:
    return SocketSnapshot(
        local=Endpoint(*sample.local),
        remote=Endpoint(*sample.remote),
        state=sample.state,
        unread=sample.unread_bytes,
        unsent=sample.unsent_bytes,
        unacked=sample.unacked_bytes,
        window=sample.send_window_bytes,
        backoff=sample.backoff,
        sent_age_s=_age_s(habits, sample.last_send_ns),
        payload=is_payload,
        broken_age_s=_age_s(habits, process.traffic.broken_ns(sample)),
    )
