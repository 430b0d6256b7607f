"""The wait table of a verdict: the wait of each rank, its thread, and since when."""

from __future__ import annotations

from kcover_ebpf.diagnosis.evidence import collective_account
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.failures.startup import WHY_UNREADABLE
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.judge import nccl
from kcover_ebpf.model.collective_counts import counts_of
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import VerdictKind, WaitRow

_GIVES_UP_S = ("libnccl", 600.0), ("libtorch", 1800.0), ("jaxlib", 100.0), ("libjax", 100.0)
"""Seconds after which a framework gives up by itself, keyed by a module on the stacks of its ranks: the defaults of
torch.distributed (NCCL, all other backends) and of jax.distributed's heartbeat."""
FRAMEWORKS = tuple(prefix for prefix, _ in _GIVES_UP_S)
"""Beginnings of the names of libraries that identify a framework."""


_RDMA = "/dev/infiniband/"
_SHOWN = 4
_NOTES = {VerdictKind.SLOW: "slow", VerdictKind.UNKNOWN: "unclear"}


def wait_rows(job: Job, finding: Finding) -> tuple[WaitRow, ...]:
    """One row per rank, and one for each child that a rank waits for; sorted by rank."""
    snapshot = job.snapshot()
    rows = []
    for pid, process in snapshot.processes.items():
        process_history = job.members.views[pid]
        member = process_history.membership
        if member is None or member.role not in (Role.RANK, Role.LOADER):
            continue
        if process_history.exit is not None and member.rank is None:
            continue
        if member.role is Role.LOADER and pid not in _explaining(finding, job):
            continue
        rows.append(_row(job, process, finding))
    return tuple(
        sorted(rows, key=lambda row: (row.rank is None, row.rank or 0, row.role != "rank"))
    )


def _explaining(finding: Finding, job: Job) -> set[int]:
    culprit = finding.culprit
    if culprit is None or culprit.tid is None or culprit.pid is None:
        return set()
    return {
        pid
        for pid, process in job.members.views.items()
        if culprit.tid in process.threads or pid == culprit.tid
    }


def _row(job: Job, rank: RankSnapshot, finding: Finding) -> WaitRow:
    process = job.members.views[rank.pid]
    lead = process.lead
    note = ""
    if rank.pid == finding.pid:
        note = _NOTES.get(finding.kind, "culprit")
    elif rank.pid in finding.victims:
        note = "victim"
    return WaitRow(
        rank=rank.rank,
        pid=rank.pid,
        tid=rank.tid or rank.pid,
        comm=lead.sample.comm if lead else process.comm,
        role=(process.role or Role.HELPER).value,
        wait=rank.text,
        since_s=max(0.0, rank.age_s),
        note=note,
    )


def gives_up_after_s(job: Job) -> float | None:
    """Seconds after which this job's framework ends a hang by itself (its default); None if unknown."""
    modules = _modules(job)
    for prefix, limit_s in _GIVES_UP_S:
        if any(module.startswith(prefix) for module in modules):
            return limit_s
    return None


def _modules(job: Job) -> set[str]:
    """Libraries seen on stacks of its ranks."""
    stacks = [*job.attention.known.stacks]
    stacks += [last_reading.stack for last_reading in job.attention.last_readings().values()]
    return {word.split("+")[0] for stack in stacks for word in stack}


def unobserved(job: Job) -> tuple[str, ...]:
    """What was not observed in this job and might change a verdict."""
    said = []
    here, size = len(job.members.all_ranks), job.members.world_size
    if size is not None and job.pace.trained and here < size:
        said.append(f"{size - here} of {size} ranks are not on this host")
    unclear = job.members.kinship.unclear(job.members.views, job.now_ns)
    if len(unclear) > 1:
        some = ", ".join(str(pid) for pid in sorted(unclear)[:_SHOWN])
        said.append(
            f"whether {len(unclear)} processes are ranks (pid {some}): what started them waits, and they have "
            "neither numbers nor TCP connections to each other"
        )
    views = job.members.views.values()
    devices = {name for process in views for name in process.devices}
    if any(not name.startswith(_RDMA) for name in devices):
        said.append("GPU activity: kernels and NVLink traffic make no system calls")
    if any(name.startswith(_RDMA) for name in devices):
        said.append("RDMA traffic: it bypasses sockets")
    said += [
        f"the memory of pid {pid}: {WHY_UNREADABLE}" for pid in sorted(job.attention.unreadable)
    ]
    said += collective_account.unread(job.attention.recorders)
    said += [] if job.attention.python is None else job.attention.python.unread
    reported = job.attention.collectives
    counts = None if reported is None else counts_of(reported, job.now_ns)
    said += nccl.unobserved(counts, _modules(job))
    return tuple(said)
