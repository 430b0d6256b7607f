"""Compares the Python stacks of all ranks, to find the one rank that is elsewhere in the program. Pure.

It explains a verdict and never supports one (docs/decisions/0014): a rank that evaluates, writes a checkpoint or logs
while the others wait for it is elsewhere in every healthy job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Generic, TypeVar

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.evidence import evidence
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.model.verdict import Evidence, EvidenceKind, VerdictKind

EXPLAINED = frozenset({VerdictKind.HUNG, VerdictKind.DEADLOCK, VerdictKind.UNKNOWN})
"""Verdicts that the position of a rank in its program explains."""
LEAST_RANKS = 3
"""Ranks needed for a majority: of two, neither is odd."""
_KEPT_FRAMES = 8
"""Innermost frames of the program that are compared and sent: deeper ones only show how it got there."""
_TEXT = 100
"""Characters kept of a name or a file; the end of a path says more than its beginning."""

_Key = TypeVar("_Key", bound=Hashable)
_Frames = Sequence[PythonFrame]


@dataclass(frozen=True, slots=True)
class OddStack(Generic[_Key]):
    """The rank that is elsewhere, with its position and that of the others."""

    key: _Key
    own: str
    others: str
    other_count: int


def innermost(frames: _Frames) -> tuple[PythonFrame, ...]:
    """The frames of a stack that are compared: the innermost ones of the program, and the library call made from them.

    If no frame belongs to the program, its innermost frames. `frames`: innermost first.
    """
    inside = len(tuple(takewhile(lambda frame: frame.is_library, frames)))
    if inside == len(frames):
        return tuple(map(_cut, frames[:_KEPT_FRAMES]))
    own = [frame for frame in frames if not frame.is_library][:_KEPT_FRAMES]
    entry = frames[inside - 1 : inside] if inside else ()
    return tuple(map(_cut, (*entry, *own)))


def _cut(frame: PythonFrame) -> PythonFrame:
    return replace(frame, function=frame.function[:_TEXT], file=frame.file[-_TEXT:])


def odd_one(stacks: Mapping[_Key, _Frames]) -> OddStack[_Key] | None:
    """The one rank that is elsewhere than all others, which agree; None if there is none. `stacks`: from `innermost`.

    It is in another function, or at another line of the same one. Ranks that poll in one loop are found at different
    lines of it, so lines count only if all others are at the same. None unless all stacks are known.
    """
    if len(stacks) < LEAST_RANKS or not all(stacks.values()):
        return None
    for place in (_functions, _lines):
        places = {key: place(frames) for key, frames in stacks.items()}
        counts = Counter(places.values()).most_common()
        if len(counts) == 1:
            continue
        (usual, most), *_ = counts
        if len(counts) != 2 or most != len(stacks) - 1:
            return None
        (odd,) = (key for key, found in places.items() if found != usual)
        others = Counter(_text(frames) for key, frames in stacks.items() if key != odd)
        return OddStack(odd, _text(stacks[odd]), others.most_common(1)[0][0], most)
    return None


def _functions(frames: _Frames) -> tuple[object, ...]:
    return tuple((frame.function, frame.file) for frame in frames)


def _lines(frames: _Frames) -> tuple[object, ...]:
    # a library may poll, too
    return tuple((frame.file, frame.line) for frame in frames if not frame.is_library) or tuple(
        frames
    )


def _text(frames: _Frames) -> str:
    entry, *own = frames
    if not own or not entry.is_library or own[0].is_library:
        return entry.text
    return f"{own[0].text}, in {entry.text}"


def levelled(snapshot: JobSnapshot) -> JobSnapshot:
    """The snapshot in which all ranks but an odd one have the same, known wait, if their Python stacks agree.

    A wait that is new to a young job must not make one of them the rank that the others wait for, even if they are
    found in several places of a library.
    """
    odd = odd_one({pid: rank.python for pid, rank in snapshot.ranks.items()})
    if odd is None:
        return snapshot
    alike = [rank for rank in snapshot.ranks.values() if rank.pid != odd.key]
    known = [rank for rank in alike if rank.known_wait]
    stack = next((rank.stack for rank in (*known, *alike) if rank.stack), ())
    one = {rank.pid: replace(rank, known_wait=True, stack=stack) for rank in alike}
    return replace(snapshot, processes={**snapshot.processes, **one})


def explained(snapshot: JobSnapshot, finding: Finding) -> Finding:
    """The finding with the position of the odd rank, if all were read and one is odd."""
    is_said = any(sentence.kind is EvidenceKind.OUTLIER for sentence in finding.evidence)
    if finding.kind not in EXPLAINED or is_said:
        return finding
    odd = odd_one({pid: rank_snapshot.python for pid, rank_snapshot in snapshot.ranks.items()})
    if odd is None:
        return finding
    rank = snapshot.ranks[odd.key]
    text = f"{evidence.name(rank)} is at {odd.own}; the {odd.other_count} other ranks are at {odd.others}"
    if odd.key != finding.pid and (rank.rank is None or rank.rank != finding.rank):
        # a different position is no fault: a rank that evaluates or writes has one
        text = f"the odd one out, not necessarily the culprit: {text}"
    return replace(finding, evidence=(*finding.evidence, Evidence(EvidenceKind.OUTLIER, text)))
