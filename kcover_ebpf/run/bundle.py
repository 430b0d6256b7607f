"""What a run saves of a faulty job: an archive of one incident, with the part of its one host.

The sensor's knowledge is copied at once (`taken`). A separate thread reads stacks and writes files; no caller waits
for it longer than `BUNDLE_LIMIT_S`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from kcover_ebpf import __version__
from kcover_ebpf.api.fault_report import FaultReport, ReportedJob
from kcover_ebpf.api.incident import Incident, JobRef, Moment, Phase, Status, kept_verdict
from kcover_ebpf.archive.incident_archive import Archive, packed
from kcover_ebpf.archive.manifest import plain
from kcover_ebpf.archive.node_part import ArchivedThread, EvidenceTrigger, NodePart
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.errors import ActionError
from kcover_ebpf.gang import rank_report
from kcover_ebpf.model.verdict import Verdict, WaitRow
from kcover_ebpf.output import formatting
from kcover_ebpf.output.bundles import bundle_name, prune, write_bundle
from kcover_ebpf.trace import rank_stacks
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S

_POD = "run"
"""Name of the only pod: a report contains processes of pods only."""


def name_of(verdict: Verdict) -> str:
    """Directory name of the bundle, which begins with its time."""
    incident = plain(verdict.incident or verdict.job)[:80]
    return bundle_name(verdict.time_s, f"{incident}-{verdict.kind.value}")


@dataclass(frozen=True, slots=True)
class Taken:
    """The sensor's knowledge at the moment of a verdict."""

    verdict: Verdict
    archive: Archive


def taken(
    job: Job,
    verdict: Verdict,
    facts: Iterable[str],
    moments: Iterable[Moment],
    trigger: EvidenceTrigger,
    host: str,
) -> Taken:
    """Copy the sensor's knowledge of the job; `facts`: as JSON lines, `host`: name of the host that the job ran on."""
    snapshot = job.snapshot()
    pods = dict.fromkeys(snapshot.processes, _POD)
    report = FaultReport(
        node=host,
        time_s=verdict.time_s,
        sequence=0,
        agent=__version__,
        job=ReportedJob(verdict.job, {}),
        suspicious=verdict.kind.is_fault,
        trained=job.pace.trained,
        verdict=rank_report.verdict_of(verdict, host, verdict.time_s, {}, {}),
    )
    carrying = rank_report.carrying(report, snapshot, pods)
    part = NodePart(
        node=host,
        time_s=verdict.time_s,
        trigger=trigger,
        version=__version__,
        report=replace(carrying, ranks=tuple(replace(rank, pod_uid="") for rank in carrying.ranks)),
        threads=tuple(map(_thread, verdict.waits)),
        facts=tuple(facts),
    )
    incident = incident_of(verdict, moments)
    return Taken(verdict, Archive(verdict.job, incident.name, incident, (part,)))


def incident_of(verdict: Verdict, moments: Iterable[Moment]) -> Incident:
    """The incident of a run in the form of a cluster's: a job of kind Process in no namespace."""
    status = Status(
        phase=Phase.OPEN,
        message=formatting.headline(verdict)[:1024],
        verdict=kept_verdict(verdict),
        timeline=tuple(moments),
    )
    name = verdict.incident or verdict.job
    return Incident("", name, JobRef("Process", verdict.job, ""), {}, status=status)


def _thread(row: WaitRow) -> ArchivedThread:
    return ArchivedThread(
        row.pid, row.tid, row.comm, "?", row.wait, row.rank, row.role, row.since_s, row.note
    )


class BundleThread:
    """Reads the stacks and writes the files of one bundle."""

    def __init__(self, folder: Path, taken: Taken, pids: Sequence[int], stacks_s: float) -> None:
        """`pids`: of the job; `stacks_s`: longest time for their stacks, 0: no stacks are read."""
        self._folder, self._taken, self._pids, self._stacks_s = folder, taken, pids, stacks_s
        self._outcome = f"the bundle in {folder} is still being written: its disk does not answer"
        self._thread = threading.Thread(target=self._run, name="kcover-evidence", daemon=True)

    def outcome(self) -> str:
        """Start the thread and describe its result; after `BUNDLE_LIMIT_S`, that it is still running."""
        self._thread.start()
        self._thread.join(BUNDLE_LIMIT_S)
        return self._outcome

    def _run(self) -> None:
        verdict, archive = self._taken.verdict, self._taken.archive
        (part,) = archive.parts
        ranks = part.report.ranks if part.report is not None else ()
        end_s = time.monotonic() + self._stacks_s
        try:
            stacks, unread = rank_stacks.read(self._pids, ranks, end_s)
            part = replace(part, stacks=stacks, unobserved=(*part.unobserved, *unread))
            files = packed(replace(archive, parts=(part,)), _for_people(verdict))
            path = write_bundle(self._folder, name_of(verdict), files)
            prune(self._folder, verdict.time_s)
            self._outcome = f"wrote {path}"
        except (ActionError, OSError) as error:
            self._outcome = str(error)


def _for_people(verdict: Verdict) -> dict[str, str]:
    headline = [formatting.headline(verdict), *formatting.details(verdict)]
    return {
        "verdict.json": json.dumps(formatting.verdict_object(verdict), indent=2) + "\n",
        "verdict.txt": "\n".join(headline) + "\n",
    }
