"""The connections of a job as a table: process at each end, queued bytes, time of the last transfer. Pure."""

from __future__ import annotations

from collections.abc import Collection

from kcover_ebpf.diagnosis.evidence.evidence import name
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.ids import NS
from kcover_ebpf.output import formatting
from kcover_ebpf.trace.records import TracedConnection

_TITLES = (
    "FROM",
    "TO",
    "LOCAL",
    "REMOTE",
    "STATE",
    "UNREAD",
    "UNSENT",
    "UNACKED",
    "BACKOFF",
    "SENT",
    "RECEIVED",
)


def edges(processes: Collection[ProcessHistory], now_ns: int) -> list[TracedConnection]:
    """One entry per connected socket; ages before `now_ns`."""
    endpoints = EndpointIndex(processes)
    names = {process.pid: name(process) for process in processes}
    found = []
    for process in sorted(processes, key=lambda process_history: process_history.pid):
        for fd, sample in sorted(process.sockets.items()):
            if sample.state == "LISTEN":
                continue
            peer = endpoints.peer(sample)
            found.append(
                TracedConnection(
                    owner=names[process.pid],
                    peer=None if peer is None else names[peer],
                    pid=process.pid,
                    fd=fd,
                    peer_pid=peer,
                    local=formatting.address(sample.local),
                    remote=formatting.address(sample.remote),
                    state=sample.state,
                    unread_bytes=sample.unread_bytes,
                    unsent_bytes=sample.unsent_bytes,
                    unacked_bytes=sample.unacked_bytes,
                    backoff=sample.backoff,
                    send_age_s=_age_s(sample.last_send_ns, now_ns),
                    receive_age_s=_age_s(sample.last_receive_ns, now_ns),
                )
            )
    return found


def table(connections: Collection[TracedConnection]) -> list[str]:
    """The connections as aligned columns; no lines if there are none."""
    if not connections:
        return []
    rows = [
        (
            connection.owner,
            connection.peer or "elsewhere",
            connection.local,
            connection.remote,
            connection.state,
            str(connection.unread_bytes),
            str(connection.unsent_bytes),
            str(connection.unacked_bytes),
            str(connection.backoff),
            _ago(connection.send_age_s),
            _ago(connection.receive_age_s),
        )
        for connection in connections
    ]
    return formatting.aligned([_TITLES, *rows])


def _age_s(at_ns: int, now_ns: int) -> float | None:
    return None if at_ns <= 0 else max(0.0, (now_ns - at_ns) / NS)


def _ago(age_s: float | None) -> str:
    return "never" if age_s is None else f"{formatting.span(age_s)} ago"
