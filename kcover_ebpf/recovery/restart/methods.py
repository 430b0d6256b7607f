"""How each job kind is restarted as a whole: the table methods.toml, read by the top owner of a gang."""

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
    """How the pods of a gang are brought down and up again without being counted as a failure."""

    SUSPEND = "suspend"
    DELETE = "delete"
    LEADER = "leader"
    COMMAND = "command"
    NONE = "none"
    """Not at all: it is an owner between pods and job, or can only be restarted in place."""


class MovesBy(Enum):
    """How one pod of a job is moved so that its controller recreates it with the same rank and counts no failure."""

    NONE = "none"
    """Not at all: the controller restarts all pods, counts it, or fails the job."""
    DELETE = "delete"
    DELETE_RESTARTABLE = "delete-restartable"
    """By deletion, if the restart policy of the pods is not Never; with Never a deleted pod is a failed one."""
    EVICT = "evict"
    """By eviction, where the batch Jobs that own the pods ignore disruptions (spec.podFailurePolicy)."""


@dataclass(frozen=True, slots=True)
class EndField:
    """Where an object says that it is over, for kinds without a condition for that."""

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
    """Label (key, value) of the leader pod; only if `method` is LEADER."""
    in_place_costs: tuple[str, ...] = ()
    """Path of the field because of which its controller counts restarts by the kubelet, or reacts to them; empty:
    neither."""
    deletes_ended: bool = False
    """Its controller deletes a pod with the restart policy Never once its container has ended."""
    counters: tuple[tuple[str, ...], ...] = ()
    """Paths of fields that a restart must not change."""
    suspended_value: object = True
    """Value of the field at `suspend` while the job is suspended."""
    running_value: object = False
    """Value of the field at `suspend` while the job runs."""
    renames: bool = False
    """Its new pods have other names than the old ones."""
    gang: tuple[str, tuple[str, ...]] | None = None
    """Label of its pods and the path of its value, which changes with each run; None: their labels stay."""
    moves: MovesBy = MovesBy.NONE
    pod_counts: tuple[tuple[str, ...], ...] = ()
    """Paths of whole numbers whose sum is its number of pods; empty: the existing pods are all."""
    end: EndField | None = None
    refused: str = ""
    """Reason why objects of this kind are not restarted; empty if they are."""


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
    """The table of all kinds, and how Kueue suspends a job."""

    kinds: tuple[KindMethod, ...]
    queue: Queue

    def find(self, api_version: str, kind: str) -> KindMethod | None:
        """The row of an object; None for a kind that is not in the table. The version does not matter."""
        group = group_of(api_version)
        return next(
            (method for method in self.kinds if (method.group, method.kind) == (group, kind)), None
        )

    def with_kinds(self, further: Iterable[KindMethod]) -> KindMethods:
        """The table with more rows; none replaces an existing one."""
        known = {(method.group, method.kind) for method in self.kinds}
        added = (row for row in further if (row.group, row.kind) not in known)
        return replace(self, kinds=(*self.kinds, *added))


def group_of(api_version: str) -> str:
    """The group in "group/version"; empty for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


@cache
def restarts() -> KindMethods:
    """The table that is part of the package."""
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
    """The value at a path of nested mappings; None if a key is missing, or a value on the path is no mapping."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
