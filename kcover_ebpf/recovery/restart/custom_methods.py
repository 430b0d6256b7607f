"""`JobKind` objects as rows of the table of restarts, and the permissions that a controller needs for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from kcover_ebpf.api.custom_kind import CustomKind, KindRestart
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.recovery.restart.methods import (
    EndField,
    KindMethod,
    MovesBy,
    ReplaceMethod,
    pointer,
    restarts,
)

_METHODS = {
    KindRestart.SUSPEND: ReplaceMethod.SUSPEND,
    KindRestart.DELETE_PODS: ReplaceMethod.DELETE,
    KindRestart.NONE: ReplaceMethod.NONE,
}


class KindReason(Enum):
    """Why a kind is usable, or not: the reason of its condition Ready."""

    PERMITTED = "Permitted"
    NOT_CHECKED = "NotChecked"
    INVALID = "Invalid"
    BUILT_IN = "BuiltIn"
    DUPLICATE = "Duplicate"
    NOT_SERVED = "NotServed"
    FORBIDDEN = "Forbidden"
    TOO_MANY = "TooMany"

    @property
    def is_ready(self) -> bool:
        """True if jobs of the kind are restarted."""
        return self is KindReason.PERMITTED


@dataclass(frozen=True, slots=True)
class KindState:
    """Result of checking a kind."""

    reason: KindReason
    text: str = ""
    """One sentence that says what to do; empty if nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission for a verb on a resource of all namespaces."""

    group: str
    resource: str
    verb: str

    @property
    def text(self) -> str:
        """The permission as VERB RESOURCE.GROUP."""
        return f"{self.verb} {self.resource}.{self.group}"


def needed(kind: CustomKind) -> tuple[Permission, ...]:
    """Permissions that the controller needs to find jobs of a kind, and to restart them."""
    verbs = ("get", "patch") if kind.restart is KindRestart.SUSPEND else ("get",)
    own = (Permission(kind.group, kind.plural, verb) for verb in verbs)
    built_in = {(row.group, row.kind) for row in restarts().kinds}
    between = (
        Permission(owner.group, owner.plural, "get")
        for owner in kind.owners
        if (owner.group, owner.kind) not in built_in
    )
    return (*own, *between)


def clash(kind: CustomKind, others: Iterable[CustomKind]) -> KindState | None:
    """Reason why a kind conflicts with the table, or with an object before it by name; None if it does not."""
    identity = kind.group, kind.kind
    if any((row.group, row.kind) == identity for row in restarts().kinds):
        text = f"{kind.kind} of {kind.group} is restarted without a JobKind: delete this object"
        return KindState(KindReason.BUILT_IN, text)
    same = [
        other_kind.name
        for other_kind in others
        if (other_kind.group, other_kind.kind) == identity and other_kind.name < kind.name
    ]
    if same:
        text = f"JobKind {min(same)} describes the same kind: delete one of them"
        return KindState(KindReason.DUPLICATE, text)
    return None


def rows_of(kind: CustomKind, state: KindState) -> tuple[KindMethod, ...]:
    """The rows of a kind and of the owners below it; those of one that is not ready contain the reason."""
    refused = "" if state.reason.is_ready else (state.text or state.reason.value)
    own = KindMethod(
        kind=kind.kind,
        group=kind.group,
        plural=kind.plural,
        method=_METHODS[kind.restart],
        suspend=pointer(kind.suspend.path) if kind.suspend is not None else (),
        in_place_costs=pointer(kind.counts_restarts or ""),
        counters=tuple(map(pointer, kind.counters)),
        suspended_value=kind.suspend.suspended if kind.suspend is not None else True,
        running_value=kind.suspend.running if kind.suspend is not None else False,
        moves=MovesBy.DELETE if kind.replaces_pods else MovesBy.NONE,
        pod_counts=tuple(map(pointer, kind.pod_count)),
        end=EndField(pointer(kind.ended.path), kind.ended.succeeded, kind.ended.failed)
        if kind.ended is not None
        else None,
        refused=refused,
    )
    between = (
        KindMethod(owner.kind, owner.group, owner.plural, ReplaceMethod.NONE, refused=refused)
        for owner in kind.owners
    )
    return (own, *between)
