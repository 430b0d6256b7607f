"""Builds the content of an incident's page from its archive. Pure; `render` converts it to HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.archive.manifest import MissingPart
from kcover_ebpf.archive.node_part import ArchivedThread, GroupPressure, NodePart
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.model.verdict import Verdict, VerdictKind
from kcover_ebpf.notify.message import message_of
from kcover_ebpf.postmortem import findings, known_verdict, signs, svg
from kcover_ebpf.postmortem.findings import ShownConnection, ShownLog
from kcover_ebpf.recovery.closing import still_so
from kcover_ebpf.trace import advice
from kcover_ebpf.views.rank_grid import NodeRanks, RankGrid, grid_of
from kcover_ebpf.views.rank_numbers import in_and_out
from kcover_ebpf.views.stack_tree import (
    Layer,
    StackTree,
    TreeLine,
    frames_of,
    tree_lines,
    tree_of,
)
from kcover_ebpf.views.timeline import TimelineEvent, chrome_trace
from kcover_ebpf.views.wait_graph import graph_of

_RUNBOOKS = "https://github.com/kcover-io/kcover-ebpf/blob/main/docs/runbooks/"
_RUNBOOK = {
    VerdictKind.SLOW: "KcoverRankSlow.md",
    VerdictKind.DEVICE_FAULT: "KcoverDeviceFault.md",
}
_MAPPED_RANKS = 256
"""Most ranks that are shown one by one; a larger job is shown as a map, with only those nodes that
differ."""
_MOST_TREE_LINES = 400
_MOST_MISSING = 200


@dataclass(frozen=True, slots=True)
class ShownTreeLine:
    """One frame of the tree; its ranks are shown where they differ from those of the frame above."""

    line: TreeLine
    who: str
    has_culprit: bool


@dataclass(frozen=True, slots=True)
class ShownStack:
    """The stack of one rank, for comparison with another."""

    title: str
    stack: Stack

    @property
    def layers(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Frames by kind of code, innermost first, without those of the interpreter."""
        frames = frames_of(self.stack)[::-1]
        found = (
            (layer.value, tuple(frame.name for frame in frames if frame.layer is layer))
            for layer in Layer
        )
        return tuple((kind, names) for kind, names in found if names)


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the page, in reading order."""

    archive: Archive
    verdict: Verdict
    status: Status | None
    sentence: str
    next_step: str
    runbook: str
    blame: str
    """Whether the infrastructure or the program caused it; empty if the archive has no Incident."""
    events: tuple[TimelineEvent, ...]
    timeline: svg.TimelineDrawing | None
    phases: tuple[tuple[str, float], ...]
    """Phase -> seconds lost, for phases with known times."""
    grid: RankGrid
    row_drawing: svg.GridDrawing
    rank_map: svg.RankMap | None
    """None for a job that is small enough to be shown rank by rank."""
    graph: svg.GraphDrawing | None
    tree: tuple[ShownTreeLine, ...]
    tree_rest: int
    beside: tuple[ShownStack, ...]
    """The culprit, and a healthy rank for comparison."""
    threads: tuple[ArchivedThread, ...]
    devices: tuple[tuple[str, ReportedDeviceFault], ...]
    gpus: tuple[tuple[str, RankSnapshot], ...]
    kernels: tuple[str, ...]
    connections: tuple[ShownConnection, ...]
    collectives: tuple[str, ...]
    pressure: tuple[tuple[str, GroupPressure], ...]
    logs: tuple[ShownLog, ...]
    missing: tuple[MissingPart, ...]
    missing_rest: int

    @property
    def began_s(self) -> float:
        """Time 0 of the page: when the fault began; without a fault, the first event."""
        return self.verdict.since_s or (self.events[0].time_s if self.events else 0.0)

    @property
    def still_so(self) -> str:
        """Whether the verdict still held; empty if the archive has no Incident."""
        return "" if self.status is None else still_so(self.status)

    @property
    def why_nothing(self) -> str:
        """Why no action was taken; empty if the job was restarted or nothing is decided yet."""
        over, status = (Phase.OBSERVED, Phase.REFUSED), self.status
        if status is None or status.restarts or status.phase not in over:
            return ""
        # first the fault in one line, then the reason, then why it is over
        said = [part for part in status.message.split("; ")[1:] if not part.startswith("closed: ")]
        return said[-1] if said else ""


def page_of(archive: Archive) -> Page:
    """The complete page. If a part of the archive is missing, its section is empty and `missing` names it."""
    verdict = known_verdict.verdict_of(archive)
    status = archive.incident.status if archive.incident is not None else None
    nodes = [_ranks_of(part) for part in archive.parts]
    culprit = verdict.culprit.rank if verdict.culprit is not None else None
    grid = grid_of(nodes, () if culprit is None else (culprit,))
    is_large = len(grid.cells) > _MAPPED_RANKS
    graph = graph_of(nodes, culprit, verdict.victims)
    tree = tree_of_archive(archive)
    shown, tree_rest = _shown(tree, culprit)
    events, missing = signs.events_of(archive, verdict), findings.missing_of(archive, verdict)
    return Page(
        archive=archive,
        verdict=verdict,
        status=status,
        sentence=known_verdict.sentence(verdict, status),
        next_step=advice.next_step(verdict, was_restarted=bool(status and status.restarts)),
        runbook=_RUNBOOKS + _RUNBOOK.get(verdict.kind, "KcoverJobHung.md"),
        blame=message_of(archive.incident, status).blame if archive.incident and status else "",
        events=events,
        timeline=svg.timeline_drawing(signs.that_happened(events), verdict.since_s or None),
        phases=_phases(status),
        grid=grid,
        row_drawing=svg.grid_drawing(grid.odd_rows() if is_large else grid.rows),
        rank_map=svg.rank_map(grid) if is_large else None,
        graph=svg.graph_drawing(graph) if graph.edges else None,
        tree=shown,
        tree_rest=tree_rest,
        beside=_beside(tree, verdict),
        threads=findings.threads_of(archive, verdict),
        devices=findings.devices_of(archive),
        gpus=findings.gpus_of(archive, culprit),
        kernels=findings.kernels_of(archive),
        connections=findings.connections_of(archive),
        collectives=findings.collectives_of(archive),
        pressure=findings.pressure_of(archive),
        logs=findings.logs_of(archive, verdict),
        missing=tuple(missing[:_MOST_MISSING]),
        missing_rest=max(0, len(missing) - _MOST_MISSING),
    )


def tree_of_archive(archive: Archive) -> StackTree:
    """The stacks of all nodes as one tree."""
    return tree_of(stack for part in archive.parts for stack in _stacks_of(part))


def chrome_trace_of(archive: Archive) -> dict[str, Any]:
    """Events and rank states as a trace file for Perfetto."""
    events = signs.events_of(archive, known_verdict.verdict_of(archive))
    nodes = [
        (_ranks_of(part), part.report.time_s if part.report is not None else part.time_s)
        for part in archive.parts
    ]
    return chrome_trace(events, nodes)


def _ranks_of(part: NodePart) -> NodeRanks:
    if part.report is None:
        return NodeRanks(part.node)
    return NodeRanks(part.node, part.report.ranks, {pod.uid: pod.name for pod in part.report.pods})


def _stacks_of(part: NodePart) -> Sequence[Stack]:
    """The stacks that were read; for ranks without any, the stack in the report."""
    ranks = part.report.ranks if part.report is not None else ()
    read = {
        (stack.pid, stack.tid)
        for stack in part.stacks
        if stack.python or stack.native or stack.kernel
    }
    known = [
        Stack(
            rank.pid,
            rank.tid or rank.pid,
            rank.rank,
            tuple(frame.text for frame in rank.python),
            rank.stack,
        )
        for rank in ranks
        if rank.exit is None and (rank.pid, rank.tid or rank.pid) not in read
    ]
    return [*part.stacks, *known]


def _shown(tree: StackTree, culprit: int | None) -> tuple[tuple[ShownTreeLine, ...], int]:
    """The lines of the tree that fit, and the number of lines left out."""
    lines = list(tree_lines(tree))
    everyone = tree.ranks(range(len(tree.stacks)))
    found = []
    has_culprit = False
    for line in lines[:_MOST_TREE_LINES]:
        who = ""
        if line.members is not None:
            ranks = tree.ranks(line.members)
            who = in_and_out(ranks, everyone)
            has_culprit = culprit is not None and culprit in ranks and len(ranks) < len(everyone)
        found.append(ShownTreeLine(line, who, has_culprit))
    return tuple(found), len(lines) - len(found)


def _beside(tree: StackTree, verdict: Verdict) -> tuple[ShownStack, ...]:
    culprit = verdict.culprit
    if culprit is None:
        return ()
    odd = next(
        (
            stack
            for stack in tree.stacks
            if (culprit.rank is not None and stack.rank == culprit.rank)
            or (culprit.rank is None and stack.pid == culprit.pid)
        ),
        None,
    )
    if odd is None:
        return ()
    shown = [ShownStack(f"the culprit, {_name(odd)}", odd)]
    for frames, members in reversed(tree.groups):
        usual = tree.stacks[members[0]]
        if frames != frames_of(odd):
            others = f" and {len(members) - 1} more at the same place" if len(members) > 1 else ""
            shown.append(ShownStack(f"for comparison, {_name(usual)}{others}", usual))
            break
    return tuple(shown)


def _name(stack: Stack) -> str:
    return f"rank {stack.rank}" if stack.rank is not None else f"process {stack.pid}"


def _phases(status: Status | None) -> tuple[tuple[str, float], ...]:
    if status is None or status.lost is None:
        return ()
    lost = status.lost
    named: Mapping[str, float | None] = {
        "detect": lost.detect_s,
        "decide": lost.decide_s,
        "shut down": lost.shut_down_s,
        "reschedule": lost.reschedule_s,
        "first progress": lost.first_progress_s,
    }
    return tuple((name, seconds) for name, seconds in named.items() if seconds is not None)
