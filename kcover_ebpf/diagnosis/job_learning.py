"""What a job learns at the end of each pass: bytes that moved, and habits while it is healthy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import Tick
from kcover_ebpf.ids import NS, Pid

if TYPE_CHECKING:
    from kcover_ebpf.diagnosis.job import Job


def end_pass(job: Job, ranks: Mapping[Pid, ProcessHistory], tick: Tick) -> None:
    """Learn from the pass that ends with this tick."""
    _count_payload(job, ranks, tick)
    now_ns, healthy = tick.boottime_ns, job.is_healthy
    if healthy:
        if not job.sub_jobs.parts:
            job.silences.observe(tick.period_ns / NS)
        job.pace.remember()
        job.senders.observe(ranks.values())
        for process in ranks.values():
            process.note_quiet(now_ns)
    if job.pace.trained and job.attention.stall is Stall.NONE:
        # one rank may be silent all along while the others train
        for process in ranks.values():
            process.note_healthy(now_ns, job.table)
            process.note_beside(tick)
            for child in job.members.children(process.pid):
                process.note_child_beside(child, tick, job.table)
    for process in job.members.views.values():
        process.passes_without_totals += 1
        if process.sockets:
            process.traffic.end_pass(now_ns, tick.period_ns, healthy=healthy)
        if process.gpus.seen is not None and process.lose_clock(now_ns):
            job.pace.relearn(process.pid, now_ns)


def _count_payload(job: Job, ranks: Mapping[Pid, ProcessHistory], tick: Tick) -> None:
    for pid, moved in job.moved_bytes.items():
        process = job.members.views.get(pid)
        if process is not None and process.on_peer_bytes(moved, tick.boottime_ns):
            job.progress(pid, tick.boottime_ns)
    # a port that several ranks have open counts once for each of them, in every pass alike
    moved = sum(job.moved_bytes[pid] + process.fabric_bytes for pid, process in ranks.items())
    for process in ranks.values():
        process.fabric_bytes = 0
    # on a busy machine, slow ranks are suspicious all the time: their bytes show that they continue
    continues = moved > 0 or not job.attention.suspicious
    job.pace.note_payload(moved, tick.period_ns, continues=continues)
    if not job.pace.slowed:
        job.narrow.forget()
    elif continues:
        job.narrow.observe(ranks)
    job.moved_bytes.clear()
