"""What must hold at the end of a run, judged from what was observed from outside. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kcover_ebpf.api.rfc3339 import from_text

MOST_BYTES = {"agent": 200_000_000, "controller": 300_000_000, "helper": 200_000_000}
"""Peak resident memory of one process; a helper is a process that an agent started."""
MOST_DESCRIPTORS = {"agent": 256, "controller": 256, "helper": 1024}
"""Of one process. An agent has 60 to 90 without a job, most of them of BPF objects; who reads native stacks has each
file that a rank has mapped open, 320 of one with PyTorch, and the kernel refuses it more than 1,024."""
MOST_HELPERS = 8
"""Of one agent: three readers, two that read Python stacks, the resumer, a prober, a round of the inspection."""
KILLED = "kill a rank"
REPORTED_EARLY_S = 15.0
"""Seconds by which an incident may date its beginning before the fault: a report's age is that of the last
progress, and a clock may be wrong by 10 s."""


_AGAIN = "again before any progress"
_NO_FAULT = ("", "WORKING", "UNKNOWN", "SLOW")
"""A job whose processors are taken by a flood is slow, and to report that is right: it is never acted on."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was really injected."""

    job: str
    kind: str
    pod: str
    at_s: float
    """Unix seconds."""
    restarted_s: float | None = None
    """When each rank had restarted, unix seconds; None: never."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An incident, as it was seen last."""

    job: str
    name: str
    verdict: str
    pod: str
    since_s: float
    """When its fault began, by its own words; when it was made, where it has none. Unix seconds."""
    phase: str
    restarts: int = 0
    """How often it restarted the job, or began to."""
    timeline: Sequence[str] = ()
    """Time, phase and text of each entry: what a run is explained by."""


@dataclass(frozen=True, slots=True)
class JobAtEnd:
    """A job when all was calm again."""

    name: str
    suspended: bool
    stopped: int
    """Processes in state T."""
    trains: bool
    starts: Mapping[int, int]
    """How many containers each rank had, the first one included."""
    deletions: int = 0
    """Times that its incident was deleted while a restart was under way: what it had begun may be begun again."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that one of our processes used."""

    component: str
    pid: int
    bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Helpers:
    """The processes that an agent had started, at the end."""

    pod: str
    alive: int
    ended: int
    """Not waited for by their agent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run showed."""

    faults: Sequence[Fault]
    incidents: Sequence[Seen]
    jobs: Sequence[JobAtEnd]
    peaks: Sequence[Peak]
    shut_nodes: Sequence[str] = field(default=())
    helpers: Sequence[Helpers] = field(default=())


def violations(outcome: Outcome) -> list[str]:
    """One sentence for each invariant that does not hold; none for a good run."""
    found = [f"node {name} takes no pods" for name in outcome.shut_nodes]
    for job in outcome.jobs:
        faults = [fault for fault in outcome.faults if fault.job == job.name]
        restarts = sum(
            incident.restarts for incident in outcome.incidents if incident.job == job.name
        )
        found += _of_job(job, faults, restarts)
    found += [
        f"{fault.job}: {fault.kind} in {fault.pod} was never reported"
        for fault in outcome.faults
        if not is_reported(fault, outcome.incidents)
    ]
    faulty = {fault.job for fault in outcome.faults}
    found += [
        f"{incident.job}: {incident.name} reports {incident.verdict}, and nothing was done to the job"
        for incident in outcome.incidents
        if incident.job not in faulty and incident.verdict not in _NO_FAULT
    ]
    found += [sentence for helpers in outcome.helpers for sentence in _of_helpers(helpers)]
    return found + [sentence for peak in outcome.peaks for sentence in _of_process(peak)]


def _of_helpers(helpers: Helpers) -> list[str]:
    found = []
    if helpers.alive > MOST_HELPERS:
        found.append(f"{helpers.pod} has {helpers.alive} processes that it started")
    if helpers.ended:
        found.append(f"{helpers.pod}: {helpers.ended} processes have ended and are still there")
    return found


def _of_job(job: JobAtEnd, faults: Sequence[Fault], restarts: int) -> list[str]:
    found = []
    if job.suspended:
        found.append(f"{job.name} is suspended")
    if job.stopped:
        found.append(f"{job.name}: {job.stopped} processes are stopped")
    if not job.trains:
        found.append(f"{job.name} does not train")
    if restarts > (most := len(faults) + job.deletions):
        found.append(f"{job.name}: was restarted {restarts} times, {most} are explained")
    # the kubelets restart ranks that died by themselves, before we do where we restart them at all
    most += 1 + sum(fault.kind == KILLED for fault in faults)
    for rank, count in sorted(job.starts.items()):
        if count > most:
            found.append(f"{job.name}: rank {rank} was started {count} times, {most} are explained")
    return found


def is_reported(fault: Fault, incidents: Sequence[Seen]) -> bool:
    """Whether an incident is about this fault."""
    return any(
        incident.job == fault.job
        and incident.verdict not in _NO_FAULT
        and at_s > fault.at_s - REPORTED_EARLY_S
        and (fault.restarted_s is None or at_s < fault.restarted_s + REPORTED_EARLY_S)
        for incident in incidents
        for at_s in _dates(incident)
    )


def _dates(incident: Seen) -> list[float]:
    # a fault before the ranks made progress again is one more restart of the same incident
    again = (entry.split()[0] for entry in incident.timeline if _AGAIN in entry)
    return [incident.since_s, *map(from_text, again)]


def _of_process(peak: Peak) -> list[str]:
    found = []
    if peak.bytes > MOST_BYTES[peak.component]:
        found.append(f"{peak.component} {peak.pid} used {peak.bytes / 1e6:.0f} MB")
    if peak.descriptors > MOST_DESCRIPTORS[peak.component]:
        found.append(f"{peak.component} {peak.pid} had {peak.descriptors} descriptors")
    return found
