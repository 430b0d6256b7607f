"""The stacks of all ranks as one tree, whose frames name their ranks: Python over native over kernel. Pure.

The idea is that of STAT (Arnold et al., IPDPS 2007): where the ranks diverge, the rank that is elsewhere becomes
visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.views.rank_numbers import in_and_out, ranks_text

_INTERPRETER = re.compile(r"\.\.\. the Python interpreter$|(?:lib)?python3[\w.]*\+")
"""Native frames of the interpreter and sampled addresses in its code, which its Python frames describe better."""
_OWNS_LOCK = "holds the interpreter lock"
"""First line of a Python stack that is not a frame (`trace.stack_helpers`)."""
_MOST_LINES = 400


class Layer(Enum):
    """What kind of code a frame belongs to."""

    PYTHON = "python"
    NATIVE = "native"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class Frame:
    """A call that has not returned."""

    name: str
    layer: Layer


@dataclass(frozen=True, slots=True)
class StackNode:
    """One frame below another, and the stacks that contain it."""

    frame: Frame
    members: frozenset[int]
    """Indexes of stacks in `StackTree.stacks`."""
    children: tuple[StackNode, ...]
    """Children with the fewest members first: the odd one out."""


Groups = tuple[tuple[tuple[Frame, ...], tuple[int, ...]], ...]
"""Each distinct stack, outermost frame first, with its members; the rarest first."""


@dataclass(frozen=True, slots=True)
class StackTree:
    """All stacks that have at least one frame."""

    stacks: tuple[Stack, ...]
    roots: tuple[StackNode, ...]
    groups: Groups

    def ranks(self, members: Iterable[int]) -> tuple[int, ...]:
        """The ranks of these members; for one without a rank, its pid as a negative number."""
        found = (self.stacks[member] for member in members)
        return tuple(
            sorted(stack.rank if stack.rank is not None else -stack.pid for stack in found)
        )


def frames_of(stack: Stack) -> tuple[Frame, ...]:
    """Outermost first: the program's Python frames, the native frames below them, and the kernel's."""
    python = [name for name in reversed(stack.python) if name != _OWNS_LOCK]
    native = list(reversed(stack.native))
    own = [place for place, name in enumerate(native) if _INTERPRETER.match(name)]
    if python and own:
        native = native[own[-1] + 1 :]
    layers = (
        (Layer.PYTHON, python),
        (Layer.NATIVE, native),
        (Layer.KERNEL, list(reversed(stack.kernel))),
    )
    return tuple(Frame(name, layer) for layer, names in layers for name in names)


def tree_of(stacks: Iterable[Stack]) -> StackTree:
    """Merge all stacks into one tree."""
    kept = tuple(stack for stack in stacks if stack.python or stack.native or stack.kernel)
    # ten thousand ranks have few distinct stacks
    equal: dict[object, list[int]] = {}
    for member, stack in enumerate(kept):
        equal.setdefault((stack.python, stack.native, stack.kernel), []).append(member)
    found: dict[tuple[Frame, ...], list[int]] = {}
    for members in equal.values():
        found.setdefault(frames_of(kept[members[0]]), []).extend(members)
    ordered = sorted(found.items(), key=lambda item: (len(item[1]), item[1]))
    groups = tuple((frames, tuple(members)) for frames, members in ordered if frames)
    return StackTree(kept, _roots(groups), groups)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A node whose members and children are still being collected."""

    frame: Frame
    members: list[int]
    children: dict[Frame, int]
    """Frame below it -> place among the drafts."""


def _roots(groups: Groups) -> tuple[StackNode, ...]:
    """The topmost nodes; made without recursion, because a program may be thousands of calls deep."""
    drafts: list[_Draft] = []
    roots: dict[Frame, int] = {}
    for frames, members in groups:
        siblings = roots
        for frame in frames:
            place = siblings.setdefault(frame, len(drafts))
            if place == len(drafts):
                drafts.append(_Draft(frame, [], {}))
            drafts[place].members.extend(members)
            siblings = drafts[place].children
    nodes: dict[int, StackNode] = {}
    for place in reversed(range(len(drafts))):
        draft = drafts[place]
        below = _in_order(nodes.pop(child) for child in draft.children.values())
        nodes[place] = StackNode(draft.frame, frozenset(draft.members), below)
    return _in_order(nodes.values())


def _in_order(nodes: Iterable[StackNode]) -> tuple[StackNode, ...]:
    return tuple(sorted(nodes, key=lambda node: (len(node.members), min(node.members))))


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One displayed line: a frame, its indentation, and its ranks if they changed."""

    depth: int
    """Number of branches above it."""
    frame: Frame
    members: frozenset[int] | None
    """Stacks that contain the frame; None: those of the line above."""


def tree_lines(tree: StackTree) -> Iterator[TreeLine]:
    """The frames in order; a line is indented only where ranks diverge."""
    left = [(0, node) for node in reversed(tree.roots)]
    while left:
        depth, node = left.pop()
        yield TreeLine(depth, node.frame, node.members)
        while len(node.children) == 1 and node.children[0].members == node.members:
            (node,) = node.children
            yield TreeLine(depth, node.frame, None)
        left += [(depth + 1, child) for child in reversed(node.children)]


def as_text(tree: StackTree) -> list[str]:
    """The tree for a terminal: frames to the left, their ranks to the right; no lines for fewer than two ranks."""
    if len(tree.stacks) < 2:
        return []
    everyone = tree.ranks(range(len(tree.stacks)))
    shown, rest = [], 0
    for number, line in enumerate(tree_lines(tree)):
        if number >= _MOST_LINES:
            rest += 1
            continue
        label = "" if line.members is None else in_and_out(tree.ranks(line.members), everyone)
        shown.append((f"{'  ' * line.depth}{line.frame.name}", line.frame.layer.value, label))
    width = min(max((len(name) for name, _, _ in shown), default=0), 78)
    lines = [f"{name:{width}}  {layer:6}  {label}".rstrip() for name, layer, label in shown]
    return lines + ([f"... {rest} more frames"] if rest else [])


def collapsed(tree: StackTree) -> str:
    """Collapsed stacks: frames with ";" between them, and the number of ranks there (Gregg's flamegraph.pl)."""
    lines = [
        f"{';'.join(_plain(frame) for frame in frames)} {len(members)}"
        for frames, members in tree.groups
    ]
    return "".join(f"{line}\n" for line in lines)


def _plain(frame: Frame) -> str:
    mark = "_[k]" if frame.layer is Layer.KERNEL else ""
    return "".join(" " if char in ";\n\r" else char for char in frame.name) + mark


def speedscope(tree: StackTree, name: str) -> dict[str, Any]:
    """A file for speedscope (speedscope.app/file-format-schema.json): all ranks, then each distinct stack alone."""
    places: dict[Frame, int] = {}
    samples = [
        [places.setdefault(frame, len(places)) for frame in frames] for frames, _ in tree.groups
    ]
    weights = [len(members) for _, members in tree.groups]
    profiles = [_profile("all ranks", samples, weights)]
    for (_, members), sample, weight in zip(tree.groups, samples, weights, strict=True):
        label = ranks_text(tree.ranks(members), 8)
        profiles.append(_profile(f"ranks {label}", [sample], [weight]))
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "kcover-ebpf",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame.name, "file": frame.layer.value} for frame in places]},
        "profiles": profiles,
    }


def _profile(name: str, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
