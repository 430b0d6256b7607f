"""How each job kind is restarted whole: the table methods.toml, read by the top owner of a gang."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from importlib.resources import files

from kcover_ebpf.dataclass import dataclass

_KEYS = {
    "kind",
    "group",
    "plural",
    "method",
    "suspend",
    "leader",
    "counters",
    "in_place_costs",
    "deletes_ended",
    "moves",
    "renames",
    "gang",
}


class ReplaceMethod(Enum):
    """What brings the pods of a gang down and up again without being counted as a failure."""

    SUSPEND = "suspend"
    DELETE = "delete"
    LEADER = "leader"
    COMMAND = "command"
    NONE = "none"
    """Nothing does: it is an owner between pods and job, or can only be restarted in place."""


class MovesBy(Enum):
    """How one pod of a job is moved, which its controller then makes again with the same rank, and counts nothing."""

    NONE = "none"
    """Not at all: the controller restarts all pods, counts it, or fails the job."""
    DELETE = "delete"
    DELETE_RESTARTABLE = "delete-restartable"
    """By deletion, where the restart policy of the pods is not Never, for which a deleted pod is a failed one."""
    EVICT = "evict"
    """By eviction, where the batch Jobs that own the pods ignore disruptions (spec.podFailurePolicy)."""


@dataclass(frozen=True, slots=True)
class EndField:
    """Where an object says that it is over, for kinds without a condition that does."""

    path: tuple[str, ...]
    succeeded: tuple[object, ...] = ()
    failed: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class KindMethod:
    """One row of `[[kind]]`, or a `JobKind` object."""

    kind: str
    group: str
    plural: str
    method: ReplaceMethod
    suspend: tuple[str, ...] = ()
    """Path of the field that suspends it; empty unless `method` is SUSPEND."""
    leader: tuple[str, str] | None = None
    """Label (key, value) of the leader pod; only where `method` is LEADER."""
    in_place_costs: tuple[str, ...] = ()
    """Path of what makes its controller count restarts by the kubelet, or answer them; empty: it does neither."""
    deletes_ended: bool = False
    """Its controller deletes a pod of the restart policy Never whose container has ended."""
    counters: tuple[tuple[str, ...], ...] = ()
    """Paths of what a restart must not move."""
    suspended_value: object = True
    """Of the field at `suspend` while it is suspended,"""
    running_value: object = False
    """and otherwise."""
    renames: bool = False
    """Its new pods have other names than those before."""
    gang: tuple[str, tuple[str, ...]] | None = None
    """Label of its pods and the path of its value, which changes with each run; None: their labels stay."""
    moves: MovesBy = MovesBy.NONE
    pod_counts: tuple[tuple[str, ...], ...] = ()
    """Paths of whole numbers that add up to its pods; empty: those that are there are all."""
    end: EndField | None = None
    refused: str = ""
    """Why nothing is done with objects of this kind; empty: it is."""


@dataclass(frozen=True, slots=True)
class Queue:
    """How Kueue suspends a job: by its own object."""

    label: str
    group: str
    plural: str
    find: str
    active: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KindMethods:
    """The whole table."""

    kinds: tuple[KindMethod, ...]
    queue: Queue

    def find(self, api_version: str, kind: str) -> KindMethod | None:
        """The row of an object; None for a kind that is not in the table. The version does not matter."""
        group = group_of(api_version)
        return next(
            (method for method in self.kinds if (method.group, method.kind) == (group, kind)), None
        )

    def with_kinds(self, further: Iterable[KindMethod]) -> KindMethods:
        """The table with more rows; none takes the place of one that is there."""
        known = {(method.group, method.kind) for method in self.kinds}
        added = (row for row in further if (row.group, row.kind) not in known)
        return replace(self, kinds=(*self.kinds, *added))


def group_of(api_version: str) -> str:
    """The group in "group/version"; empty for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


@cache
def restarts() -> KindMethods:
    """The table that is shipped with the package."""
    return parse((files(__package__) / "methods.toml").read_text(encoding="utf-8"))


def parse(text: str) -> KindMethods:
    """The table in a TOML text; raises `KeyError`, `ValueError` or `TypeError` for anything incomplete."""
    table = tomllib.loads(text)
    queue = table["queue"]
    return KindMethods(
        tuple(_kind(row) for row in table["kind"]),
        Queue(
            queue["label"], queue["group"], queue["plural"], queue["find"], path(queue["active"])
        ),
    )


def _kind(row: Mapping[str, object]) -> KindMethod:
    if unknown := set(row) - _KEYS:
        raise ValueError(f"kinds: unknown key {min(unknown)!r}")
    method = ReplaceMethod(row["method"])
    leader = str(row["leader"]).partition("=") if "leader" in row else None
    counters = row["counters"]
    if not isinstance(counters, list):
        raise TypeError("kinds: counters must be a list of paths")
    found_method = KindMethod(
        kind=str(row["kind"]),
        group=str(row["group"]),
        plural=str(row["plural"]),
        method=method,
        suspend=path(str(row.get("suspend", ""))),
        leader=(leader[0], leader[2]) if leader else None,
        in_place_costs=path(str(row.get("in_place_costs", ""))),
        counters=tuple(path(str(counter)) for counter in counters),
        deletes_ended=row.get("deletes_ended") is True,
        renames=row.get("renames") is True,
        gang=_gang(row),
        moves=MovesBy(row.get("moves", "none")),
    )
    if (method is ReplaceMethod.SUSPEND) != bool(found_method.suspend) or (
        method is ReplaceMethod.LEADER
    ) != bool(leader):
        raise ValueError(
            f"kinds: {found_method.kind}: `suspend` or `leader` does not fit its method"
        )
    return found_method


def _gang(row: Mapping[str, object]) -> tuple[str, tuple[str, ...]] | None:
    label, found, field = str(row.get("gang", "")).partition("=")
    return (label, path(field)) if found else None


def path(dotted: str) -> tuple[str, ...]:
    """The keys of a dotted path; empty for an empty text."""
    return tuple(dotted.split(".")) if dotted else ()


def pointer(text: str) -> tuple[str, ...]:
    """The keys of a JSON pointer (RFC 6901) into objects; empty for an empty text."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def at(value: object, keys: tuple[str, ...]) -> object:
    """What lies at a path of nested mappings; None where a key is missing or nothing can be entered."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
