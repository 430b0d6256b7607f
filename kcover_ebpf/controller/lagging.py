"""What a verdict on a gang says about ranks that are behind: which rack, node or local rank they are all of. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Evidence, EvidenceKind
from kcover_ebpf.views.lag_groups import JobPlaces, sentences


def with_lags(
    gang_verdict: GangVerdict, seen: Sequence[ReceivedReport], rack: Callable[[str], str | None]
) -> GangVerdict:
    """The verdict with what all of a rack, a node or a rail is behind by, where NCCL said so; else the same."""
    verdict = gang_verdict.verdict
    answers = [received.report.collectives for received in seen]
    lagging = [counts for counts in answers if counts is not None and counts.lags]
    if not verdict.opens_incident or not lagging:
        return gang_verdict
    newest = min(lagging, key=lambda counts: counts.age_s)
    texts = sentences(newest.lags, _places(seen, rack))
    said = tuple(Evidence(EvidenceKind.COLLECTIVE, text) for text in texts)
    return replace(gang_verdict, verdict=replace(verdict, evidence=(*verdict.evidence, *said)))


def _places(seen: Sequence[ReceivedReport], rack: Callable[[str], str | None]) -> JobPlaces:
    node_of: dict[str, str] = {}
    ranks_of: Counter[str] = Counter()
    for received in seen:
        node = received.report.node
        for rank in received.report.ranks:
            if rank.role is Role.RANK and rank.exit is None:
                ranks_of[node] += 1
                node_of |= dict.fromkeys((socket.local.address for socket in rank.sockets), node)
    racks = {node: name for node in ranks_of if (name := rack(node)) is not None}
    return JobPlaces(node_of, ranks_of, racks)
