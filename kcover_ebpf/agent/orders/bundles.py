"""What a node saves of a gang before the gang is killed: its part of the incident's archive.

All of it is read within seconds: the last report, thread states, stacks of the ranks, the pressure of their control
groups, and the end of the containers' logs where the policy allows that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kcover_ebpf import __version__
from kcover_ebpf.agent.orders.evidence_reader import EvidenceReading
from kcover_ebpf.agent.orders.evidence_thread import BundleWriter, EvidenceRequest
from kcover_ebpf.agent.orders.optional_evidence import OptionalEvidence
from kcover_ebpf.agent.pod_registry import key_of
from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.order import Verb
from kcover_ebpf.archive.incident_archive import Archive, packed
from kcover_ebpf.archive.manifest import plain
from kcover_ebpf.archive.node_part import EvidenceTrigger, NodePart
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ActionError, ReaderError
from kcover_ebpf.output.bundles import bundle_name, prune, write_bundle
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S, SNAPSHOT_LIMIT_S
from kcover_ebpf.watching import py_spy

Tails = Callable[[str, Sequence[str]], Mapping[str, str]]
"""Called with a namespace and uids of pods: ends of their logs by file name; raises `ReaderError`."""
_NO_LOGS = "the policy of the job excludes log lines (spec.evidenceLogs)"


@dataclass(frozen=True, slots=True)
class GangReports:
    """Reports of this node about a gang; None before the first."""

    newest: Callable[[Gang], FaultReport | None]
    """The last report, without waiting."""
    complete: Callable[[Gang], FaultReport | None]
    """The report with snapshots of all ranks; may wait for a pass of the loop."""


class Bundles:
    """Writes bundles into a directory, and keeps as many as `output.bundles.BundleBounds` allows."""

    def __init__(  # noqa: PLR0913, PLR0917 - one source of evidence each
        self,
        folder: Path,
        reports: GangReports,
        on_error: Callable[[str], None],
        tails: Tails,
        node: str = "",
        confinement: Confinement = py_spy.SPY,
        optional: OptionalEvidence | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tails`: reads ends of logs; `confinement`: of py-spy.

        `optional`: evidence that an operator must opt in to; None: none. `clock`: unix seconds.
        """
        self._folder, self._reports = folder, reports
        self._on_error, self._clock = on_error, clock
        self._tails, self._spies, self._node = tails, confinement, node
        self._optional = optional or OptionalEvidence()

    def before_stop(self, request: EvidenceRequest) -> None:
        """Read what only running processes can answer."""
        self._optional.before_stop(request)

    def of(self, request: EvidenceRequest) -> BundleWriter:
        """A bundle of the requested evidence, to be written later by another thread."""
        name = bundle_name(self._clock(), plain(request.incident or key_of(request.gang)))
        known_report = self._reports.newest(request.gang)
        return BundleWriter(
            str(self._folder / name), lambda: self._write(name, request, known_report)
        )

    def _write(self, name: str, request: EvidenceRequest, known_report: FaultReport | None) -> None:
        part = self._part(request, known_report)
        gang = request.gang
        archive = Archive(f"{gang.namespace}/{gang.name}", request.incident, parts=(part,))
        try:
            write_bundle(self._folder, name, packed(archive))
            prune(self._folder, self._clock())
        except (ActionError, OSError) as error:
            self._on_error(str(error))

    def _part(self, request: EvidenceRequest, known_report: FaultReport | None) -> NodePart:
        """`known_report`: the report at the time of the request."""
        limit_s = SNAPSHOT_LIMIT_S if request.verb is Verb.SNAPSHOT else BUNDLE_LIMIT_S
        end_s = time.monotonic() + limit_s
        # the report may take a pass of the loop, which is half of the time
        reading = EvidenceReading(
            request.found, known_report.ranks if known_report is not None else (), self._spies
        )
        optional = self._optional.begin(request)
        report = self._reports.complete(request.gang)
        if (
            known_report is not None
            and known_report.ranks
            and not (report is not None and report.ranks)
        ):
            # the ranks have ended meanwhile, and their successors are not known yet
            report = known_report
        ranks = report.ranks if report is not None else ()
        readings = reading.finish(ranks, request.pods, end_s)
        more = optional({rank.pid: rank.rank for rank in ranks}, end_s)
        unobserved = [*readings.unobserved, *more.unobserved]
        if report is None:
            unobserved.append("the report of this node: none was made yet")
        return NodePart(
            node=self._node,
            time_s=self._clock(),
            trigger=EvidenceTrigger(request.verb.value),
            version=__version__,
            report=report,
            stacks=readings.stacks,
            threads=readings.threads,
            pressure=readings.pressure,
            kernels=more.kernels,
            checkpoints=more.checkpoints,
            logs=self._logs(request, unobserved),
            unobserved=tuple(unobserved),
        )

    def _logs(self, request: EvidenceRequest, unobserved: list[str]) -> Mapping[str, str]:
        if not request.with_logs:
            unobserved.append(f"logs of containers: {_NO_LOGS}")
            return {}
        try:
            return self._tails(request.gang.namespace, sorted(request.pods))
        except ReaderError as error:
            unobserved.append(f"logs of containers: {error}")
            return {}
