"""The past of a job, by which its present silence is judged. Pure."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.wait_table import gives_up_after_s
from kcover_ebpf.model.silence_summary import SilenceSummary


def past_of(job: Job) -> SilenceSummary:
    """The job's silences as its node reports them, with those of its start and steps, and its framework's time-out."""
    memory = job.pace.memory
    return replace(
        memory.silences.summary,
        gives_up_s=gives_up_after_s(job),
        start_s=round(memory.start_s, 2),
        step_s=round(memory.step_s, 2),
    )
