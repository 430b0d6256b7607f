"""A gang as the API server shows it, and the calls that may be made about it. No judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.incident import JobRef
from kcover_ebpf.api.pods import ContainerKind, Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.recovery.restart.demand import RestartDemand
from kcover_ebpf.recovery.restart.methods import KindMethod, MovesBy, ReplaceMethod

NOT_MOVED = "the controller of the job restarts all pods for one, or counts it as a failure"
SUSPENDED_BY = "kcover.io/suspended-by"
"""Annotation on what we suspended: the Incident's namespace/name and uid. Without it a suspended object is not ours."""


@dataclass(frozen=True, slots=True)
class SuspendSwitch:
    """The object whose one field suspends the job: the top owner, or its Workload under Kueue."""

    api_version: str
    plural: str
    name: str
    field: tuple[str, ...]
    suspended_value: object
    """The value of the field while the job is suspended."""
    resource_version: str
    suspended: bool = False
    suspended_by: str | None = None
    """The annotation; None if we did not do it."""
    running_value: object = False
    """The value of the field otherwise."""


@dataclass(frozen=True, slots=True)
class TopOwner:
    """The top owner of a gang."""

    ref: JobRef
    method: KindMethod | None
    """None for a kind that is not in the table."""
    target: SuspendSwitch | None = None
    """None where the kind is not restarted by suspending it."""
    armed: bool = False
    """It, or an owner between it and the pods, carries the label that arms."""
    ended: str | None = None
    """Complete, Succeeded or Failed once it is over."""
    costs_in_place: bool = False
    """Restarts by the kubelet are counted against a limit, or answered by the job's own controller."""
    deletion_means: bool = False
    """A policy of the object itself gives the deletion of a pod a meaning (Volcano)."""
    version: int = 0
    """Grows with each restart that its controller carries out by a Command (Volcano)."""
    renames: bool = False
    """Its new pods have other names and do not wait for old ones, so that one that stays blocks none."""
    gang: Mapping[str, str] | None = None
    """The labels of the pods of its present run; None where those of all runs are alike, or none runs."""
    has_gang_a_run: bool = False
    """The pods of each run have other labels."""
    moves: MovesBy = MovesBy.NONE
    """How one of its pods is moved while the others stay,"""
    moves_not: str = NOT_MOVED
    """and, where none can be, why."""
    pod_count: int | None = None
    """So many pods it is to have; None where it does not say."""
    why: str = ""
    """Why it cannot be restarted by replacing its pods, where that is not a matter of its kind."""
    operator: str | None = None
    """Who restarts it from outside, beside us, and replaces its nodes; None where none is known."""
    owner: str | None = None
    """Who owns the job, as its annotation or label `kcover.io/owner` says, or the label of most of its pods."""


@dataclass(frozen=True, slots=True)
class GangPod:
    """A pod of the gang, and what its specification says about its end."""

    pod: Pod
    grace_s: float = 30.0
    restart_policy: str = "Always"

    @property
    def is_live(self) -> bool:
        """True while it runs, or will, and has not been deleted."""
        return not self.pod.ended and self.pod.deleted_s is None

    @property
    def is_leaving(self) -> bool:
        """True from its deletion until its object is gone."""
        return self.pod.deleted_s is not None

    @property
    def restart_count(self) -> int:
        """Restarts of its main containers together."""
        main = (
            container for container in self.pod.containers if container.kind is ContainerKind.MAIN
        )
        return sum(container.restart_count for container in main)

    @property
    def started_s(self) -> float | None:
        """When the last of its main containers began to run; None unless all of them do."""
        main = [
            container.started_s
            for container in self.pod.containers
            if container.kind is ContainerKind.MAIN
        ]
        times = [value for value in main if value is not None]
        return max(times) if times and len(times) == len(main) else None


@dataclass(frozen=True, slots=True)
class RestartInput:
    """What is known about a gang and its job now; times are unix seconds by the controller's clock."""

    now_s: float
    top: TopOwner | None
    """None once the object is gone."""
    pods: tuple[GangPod, ...]
    reports: tuple[ReceivedReport, ...] = ()
    gang_verdict: GangVerdict | None = None
    demand: RestartDemand | None = None
    """None unless a person asks for a restart that has not begun yet."""
    agents: frozenset[str] = frozenset()
    """Nodes whose agent reports at all."""
    ready: frozenset[str] = frozenset()
    """Nodes of its pods whose kubelet answers: what the API server says of pods there is so."""
    fenced: frozenset[str] = frozenset()
    """Nodes of its pods that are marked so that nothing runs there any more (taint out-of-service)."""
    published: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By Service the uids of the pods whose addresses it publishes; only while pods are being moved."""

    @property
    def live(self) -> tuple[GangPod, ...]:
        """Pods that run or will."""
        return tuple(pod for pod in self.pods if pod.is_live)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes with live pods; sorted."""
        return tuple(sorted({pod.pod.node for pod in self.live if pod.pod.node}))

    def acks(self, order: str) -> Mapping[str, AckResult]:
        """Result of an order, by node that has answered."""
        return {
            seen.report.node: ack.result
            for seen in self.reports
            for ack in seen.report.acks
            if ack.order == order
        }


# ---- calls; each may be made twice


@dataclass(frozen=True, slots=True)
class Suspension:
    """Suspend what `target` names, or let it continue; refused by the server if the object changed meanwhile."""

    target: SuspendSwitch
    suspended: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete pods by name and uid."""

    pods: tuple[tuple[str, str], ...]
    grace_s: int
    foreground: bool = False


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict pods by name and uid: as `Delete`, and marked as a disruption, which a job may ignore."""

    pods: tuple[tuple[str, str], ...]
    grace_s: int


@dataclass(frozen=True, slots=True)
class DeleteAll:
    """Delete all pods of a gang by their labels; only while the job is suspended, so that none of them is new."""

    selector: Mapping[str, str]
    shares: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(label, values) of each of several requests at once: the API server deletes one pod of a request after the
    other, and waits for its disk each time. Empty: one request for all."""


@dataclass(frozen=True, slots=True)
class Command:
    """Ask Volcano's controller for a restart, by an object of a fixed name."""

    name: str
    target: JobRef
    action: str = "RestartJob"


@dataclass(frozen=True, slots=True)
class Cordon:
    """Cordon nodes."""

    nodes: tuple[str, ...]
    reason: str


Call = Suspension | Delete | Evict | DeleteAll | Command | Cordon


def replace_method_of(top: TopOwner) -> ReplaceMethod | None:
    """How this very object is restarted; None if it is not."""
    if top.method is None or top.method.method is ReplaceMethod.NONE or top.why:
        return None
    if top.method.method is ReplaceMethod.SUSPEND and top.target is None:
        return None
    if top.target is not None:
        return ReplaceMethod.SUSPEND
    if top.method.method is ReplaceMethod.COMMAND and not top.deletion_means:
        return ReplaceMethod.DELETE
    return top.method.method
