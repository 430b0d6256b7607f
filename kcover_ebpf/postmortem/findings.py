"""The nodes' findings other than stacks, for the page: threads, devices, connections, pressure, logs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.archive.manifest import MissingPart
from kcover_ebpf.archive.node_part import ArchivedThread, GroupPressure
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.traced import GpuKernel
from kcover_ebpf.model.verdict import Verdict

_MOST_THREADS, _MOST_CONNECTIONS = 40, 30
_LOG_BYTES, _MOST_LOGS = 300_000, 24
_NEARLY_FULL = 0.95


@dataclass(frozen=True, slots=True)
class ShownConnection:
    """A connection on which data is stuck."""

    node: str
    who: str
    local: str
    remote: str
    state: str
    queued: str
    backoff: int
    broken_age_s: float | None


@dataclass(frozen=True, slots=True)
class ShownLog:
    """The end of one container's log."""

    node: str
    name: str
    text: str


def threads_of(archive: Archive, verdict: Verdict) -> tuple[ArchivedThread, ...]:
    """Threads of the culprit; for `run` the whole table of waits, which is short."""
    culprit = verdict.culprit
    found = [
        thread
        for part in archive.parts
        for thread in part.threads
        if thread.note
        or (culprit is not None and culprit.rank is not None and thread.rank == culprit.rank)
        or (
            culprit is not None
            and thread.pid == culprit.pid
            and part.node in (culprit.node, culprit.host)
        )
    ]
    return tuple(found[:_MOST_THREADS])


def devices_of(archive: Archive) -> tuple[tuple[str, ReportedDeviceFault], ...]:
    """(node, fault) for each device that reported a fault to the job."""
    return tuple(
        (part.node, fault)
        for part in archive.parts
        if part.report is not None
        for fault in part.report.devices
    )


def gpus_of(archive: Archive, culprit: int | None) -> tuple[tuple[str, RankSnapshot], ...]:
    """(node, rank) for ranks whose GPU use differs from the majority's, and for the culprit."""
    found = [
        (part.node, rank)
        for part in archive.parts
        if part.report is not None
        for rank in part.report.ranks
        if rank.gpu is not None
    ]
    counts: dict[object, int] = {}
    for _, rank in found:
        use = rank.gpu.use if rank.gpu is not None else None
        counts[use] = counts.get(use, 0) + 1
    usual = max(counts, key=lambda use: counts[use], default=None)
    odd = [
        (node, rank)
        for node, rank in found
        if rank.rank == culprit or (rank.gpu is not None and rank.gpu.use is not usual)
    ]
    healthy = next((entry for entry in found if entry not in odd), None)
    return (*odd[:_MOST_CONNECTIONS], *([healthy] if healthy is not None else []))


def kernels_of(archive: Archive) -> tuple[str, ...]:
    """A line for each kernel that ran on the ranks' GPUs, and for each checkpoint on a node."""
    kernels = [
        (kernel.rank if kernel.rank is not None else -1, f"{_who(kernel)}, {kernel.text}")
        for part in archive.parts
        for kernel in part.kernels
    ]
    kept = [
        f"checkpoint on {part.node}: {entry}"
        for part in archive.parts
        for entry in part.checkpoints
    ]
    return (*(text for _, text in sorted(kernels)[:_MOST_CONNECTIONS]), *kept[:_MOST_CONNECTIONS])


def _who(kernel: GpuKernel) -> str:
    return f"process {kernel.pid}" if kernel.rank is None else f"rank {kernel.rank}"


def connections_of(archive: Archive) -> tuple[ShownConnection, ...]:
    """Connections with queued data, and broken ones; the longest broken first."""
    found = [
        ShownConnection(
            node=part.node,
            who=f"rank {rank.rank}" if rank.rank is not None else f"process {rank.pid}",
            local=str(socket.local),
            remote=str(socket.remote),
            state=socket.state,
            queued=f"{socket.unread} / {socket.unsent} / {socket.unacked}",
            backoff=socket.backoff,
            broken_age_s=socket.broken_age_s,
        )
        for part in archive.parts
        if part.report is not None
        for rank in part.report.ranks
        for socket in rank.sockets
        if socket.backoff or socket.broken_age_s is not None or socket.unsent or socket.unread
    ]
    found.sort(key=lambda connection: (-(connection.broken_age_s or 0.0), -connection.backoff))
    return tuple(found[:_MOST_CONNECTIONS])


def collectives_of(archive: Archive) -> tuple[str, ...]:
    """A sentence for each rank that is behind according to NCCL or the flight recorders."""
    found: dict[str, None] = {}
    for part in archive.parts:
        report = part.report
        if report is None:
            continue
        if report.collectives is not None:
            found |= dict.fromkeys(_counted(report.collectives))
        for record in report.recorders.records if report.recorders is not None else ():
            for group in record.groups:
                for call in group.pending:
                    where = f" at {call.place}" if call.place else ""
                    text = f"rank {record.rank}: {call.operation} {call.sequence} is pending{where}"
                    found[f"{text} (flight recorder, group {group.purpose or group.name})"] = None
    return tuple(list(found)[:_MOST_CONNECTIONS])


def _counted(counts: CollectiveCounts) -> Sequence[str]:
    lines = [
        f"NCCL: rank {rank.rank} of {rank.size} on {rank.host} launched {rank.launched} operations, "
        f"others {rank.most_launched}"
        for rank in counts.behind
    ]
    lines += [
        f"NCCL: rank {rank.rank} of {rank.size} on {rank.host} gives no answer"
        for rank in counts.missing
    ]
    lines += [
        f"NCCL: rank {rank.rank} of {rank.size} on {rank.host}: {rank.trouble}"
        for rank in counts.failed
    ]
    lines += [f"NCCL: {side.rank_count} ranks launched {side.operations}" for side in counts.sides]
    return lines


def pressure_of(archive: Archive) -> tuple[tuple[str, GroupPressure], ...]:
    """Containers whose processes waited for a resource, were throttled, or are close to their memory limit."""
    found = [
        (part.node, group) for part in archive.parts for group in part.pressure if _presses(group)
    ]
    return tuple(found[:_MOST_CONNECTIONS])


def _presses(group: GroupPressure) -> bool:
    texts = (group.cpu, group.memory, group.io)
    waited = any(_share(line) >= 1.0 for text in texts for line in text.splitlines())
    most, used = group.memory_most_bytes, group.memory_bytes
    is_full = bool(most and used and used > _NEARLY_FULL * most)
    killed = any(
        line.startswith("oom_kill ") and not line.endswith(" 0")
        for line in group.events.splitlines()
    )
    return waited or is_full or killed


def _share(line: str) -> float:
    """Percentage of the last ten seconds in a line of PSI; 0 for other lines."""
    for word in line.split():
        name, _, value = word.partition("=")
        if name == "avg10":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 0.0


def logs_of(archive: Archive, verdict: Verdict) -> tuple[ShownLog, ...]:
    """The culprit's log first; at most as many as fit on the page."""
    culprit = verdict.culprit.pod if verdict.culprit is not None else None
    found = [
        ShownLog(part.node, name, text)
        for part in archive.parts
        for name, text in part.logs.items()
    ]
    found.sort(key=lambda log: not (culprit and log.name.startswith(f"{culprit}.")))
    kept, left_bytes = [], _LOG_BYTES
    for log in found[:_MOST_LOGS]:
        left_bytes -= len(log.text)
        if left_bytes < 0:
            break
        kept.append(log)
    return tuple(kept)


def missing_of(archive: Archive, verdict: Verdict) -> list[MissingPart]:
    """What the archive lacks, what no sensor observed, and what a node could not read."""
    said = [*archive.missing]
    said += [MissingPart("the job", text) for text in verdict.unobserved]
    by_text: dict[str, list[str]] = {}
    for part in archive.parts:
        for text in part.unobserved:
            by_text.setdefault(text, []).append(part.node)
    for text, nodes in by_text.items():
        more = f" and {len(nodes) - 1} more nodes" if len(nodes) > 1 else ""
        said.append(MissingPart(f"{nodes[0]}{more}", text))
    return list(dict.fromkeys(said))
