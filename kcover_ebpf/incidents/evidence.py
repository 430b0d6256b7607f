"""The sentences that support a finding; each is there only if it is true."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.incidents import links
from kcover_ebpf.incidents.finding import Picture
from kcover_ebpf.incidents.standing import EFFORT, Standing
from kcover_ebpf.incidents.verdict import Evidence, EvidenceKind


def time(picture: Picture, each: Standing) -> list[Evidence]:
    """Its silence, if it is longer than this rank ever was silent while healthy."""
    threshold = picture.thresholds_s.get(each.pid)
    if threshold is None or picture.silence_s(each.pid) < threshold:
        return []
    text = (
        f"{name(each)} has not moved for {picture.silence_s(each.pid):.1f} s "
        f"(a stall from {threshold:.1f} s on, learned)"
    )
    return [Evidence(EvidenceKind.TIME, text)]


def peers(picture: Picture, culprit: Standing, ranks: Sequence[Standing]) -> list[Evidence]:
    """The others, if every one of them waits."""
    others = [each for each in ranks if each.pid != culprit.pid]
    if not others or any(each.state in EFFORT for each in others):
        return []
    shortest = min(picture.silence_s(each.pid) for each in others)
    text = f"all {len(others)} other ranks wait, for at least {shortest:.1f} s"
    return [Evidence(EvidenceKind.PEERS, text)]


def unread(picture: Picture, each: Standing) -> list[Evidence]:
    """What its peers sent and it did not read."""
    view = picture.ranks.get(each.pid)
    if view is None:
        return []
    size, count = links.unread(view, picture.ends, picture.ranks)
    if not count:
        return []
    text = f"{name(each)} left {size} B from {count} peer connections unread"
    return [Evidence(EvidenceKind.EDGE, text)]


def sender(picture: Picture, each: Standing) -> list[Evidence]:
    """Its last sending, if that was before everybody else's."""
    lag = links.oldest_sender(picture.ranks, picture.ends)
    if lag is None or lag[0] != each.pid:
        return []
    return [Evidence(EvidenceKind.EDGE, f"{name(each)} sent last {lag[1]:.2f} s before all others")]


def odd_stack(picture: Picture, each: Standing) -> list[Evidence]:
    """Its place in the code, if nobody was ever seen to wait there while healthy."""
    if each.inspection is None or not each.inspection.stack or not picture.known.count:
        return []
    if picture.known.knows(each.inspection.stack):
        return []
    return [
        Evidence(EvidenceKind.STACK, f"{name(each)} waits where no rank ever waited while healthy")
    ]


def name(each: Standing) -> str:
    """The rank for people; the process where it has no number."""
    return f"rank {each.rank}" if each.rank is not None else f"process {each.pid}"


def ago(picture: Picture, each: Standing) -> str:
    """Since when it stands there, for people."""
    return f"for {picture.silence_s(each.pid):.1f} s"
