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

NOT_MOVED = "its controller would restart all pods if one is deleted, or count that as a failure"
SUSPENDED_BY = "kcover.io/suspended-by"
"""Annotation on what we suspended: the Incident's namespace/name and uid. Without it a suspended object is not ours."""


@dataclass(frozen=True, slots=True)
class SuspendSwitch:
    """The object with the one field that suspends the job: the top owner, or its Workload under Kueue."""

    api_version: str
    plural: str
    name: str
    field: tuple[str, ...]
    suspended_value: object
    """The value of the field while the job is suspended."""
    resource_version: str
    suspended: bool = False
    suspended_by: str | None = None
    """Value of our annotation on it; None if we did not suspend it."""
    running_value: object = False
    """The value of the field otherwise."""


@dataclass(frozen=True, slots=True)
class TopOwner:
    """The topmost owner of a gang's pods: the job, with all of its object that a restart depends on."""

    ref: JobRef
    method: KindMethod | None
    """Row of the table of methods; None for a kind that is not in it."""
    target: SuspendSwitch | None = None
    """Switch by which it is suspended; None if its kind is not restarted by suspension."""
    armed: bool = False
    """The top owner, or an owner between it and the pods, has the label that arms the job."""
    ended: str | None = None
    """Complete, Succeeded or Failed once it is over; None before."""
    costs_in_place: bool = False
    """Its controller counts restarts by the kubelet against a limit, or reacts to them itself."""
    deletion_means: bool = False
    """A policy in the object gives the deletion of a pod a meaning (Volcano)."""
    version: int = 0
    """Number that grows with each restart that its controller carries out for a Command (Volcano)."""
    renames: bool = False
    """Its new pods have other names and do not wait for old ones, so an old pod that stays blocks none."""
    gang: Mapping[str, str] | None = None
    """Labels of the pods of its present run; None if all runs have the same labels, or none runs."""
    has_gang_a_run: bool = False
    """The pods of each run have other labels."""
    moves: MovesBy = MovesBy.NONE
    """How one of its pods is moved while the others stay."""
    moves_not: str = NOT_MOVED
    """Reason why no pod can be moved, if `moves` is NONE."""
    pod_count: int | None = None
    """Number of pods that it is to have; None if it does not say."""
    why: str = ""
    """Reason other than its kind why it cannot be restarted by replacing its pods; empty if it can."""
    operator: str | None = None
    """Another operator that restarts it and replaces its nodes; None if none is known."""
    owner: str | None = None
    """Owner of the job by its annotation or label `kcover.io/owner`, or by the label of most of its pods."""


@dataclass(frozen=True, slots=True)
class GangPod:
    """A pod of the gang, and what its specification says about its end."""

    pod: Pod
    grace_s: float = 30.0
    restart_policy: str = "Always"

    @property
    def is_live(self) -> bool:
        """True while it runs, or will run, and has not been deleted."""
        return not self.pod.ended and self.pod.deleted_s is None

    @property
    def is_leaving(self) -> bool:
        """True from its deletion until its object is gone."""
        return self.pod.deleted_s is not None

    @property
    def restart_count(self) -> int:
        """Sum of the restarts of its main containers."""
        main = (
            container for container in self.pod.containers if container.kind is ContainerKind.MAIN
        )
        return sum(container.restart_count for container in main)

    @property
    def started_s(self) -> float | None:
        """When the last of its main containers began to run (unix seconds); None unless all of them run."""
        main = [
            container.started_s
            for container in self.pod.containers
            if container.kind is ContainerKind.MAIN
        ]
        times = [value for value in main if value is not None]
        return max(times) if times and len(times) == len(main) else None


@dataclass(frozen=True, slots=True)
class RestartInput:
    """Everything known about a gang and its job; times are unix seconds by the controller's clock."""

    now_s: float
    top: TopOwner | None
    """The top owner; None once the object is gone."""
    pods: tuple[GangPod, ...]
    reports: tuple[ReceivedReport, ...] = ()
    gang_verdict: GangVerdict | None = None
    demand: RestartDemand | None = None
    """A restart that a person requested and that has not begun yet; None if there is none."""
    agents: frozenset[str] = frozenset()
    """Nodes whose agents report at all."""
    ready: frozenset[str] = frozenset()
    """Nodes of its pods whose kubelet answers: the API server's state of their pods is true."""
    fenced: frozenset[str] = frozenset()
    """Nodes of its pods that are marked out of service (taint out-of-service): nothing runs there any more."""
    published: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Service -> uids of the pods whose addresses it publishes; only while pods are being moved."""

    @property
    def live(self) -> tuple[GangPod, ...]:
        """Pods that run or will run, without deleted ones."""
        return tuple(pod for pod in self.pods if pod.is_live)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes with live pods; sorted."""
        return tuple(sorted({pod.pod.node for pod in self.live if pod.pod.node}))

    def acks(self, order: str) -> Mapping[str, AckResult]:
        """Results of an order, by the nodes that have answered."""
        return {
            seen.report.node: ack.result
            for seen in self.reports
            for ack in seen.report.acks
            if ack.order == order
        }


# ---- calls; each may be made twice


@dataclass(frozen=True, slots=True)
class Suspension:
    """Suspend or resume the job that `target` names; the server refuses it if the object changed meanwhile."""

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
    """Evict pods by name and uid: like `Delete`, but marked as a disruption, which a job may ignore."""

    pods: tuple[tuple[str, str], ...]
    grace_s: int


@dataclass(frozen=True, slots=True)
class DeleteAll:
    """Delete all pods of a gang by their labels; only while the job is suspended, so that none of them is new."""

    selector: Mapping[str, str]
    shares: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(label, values) of each of several concurrent requests: the API server deletes the pods of one request one after
    the other, and waits for its disk each time. Empty: one request for all."""


@dataclass(frozen=True, slots=True)
class Command:
    """Request a restart from Volcano's controller, by an object with a fixed name."""

    name: str
    target: JobRef
    action: str = "RestartJob"


@dataclass(frozen=True, slots=True)
class Cordon:
    """Make the named nodes unschedulable, with a reason."""

    nodes: tuple[str, ...]
    reason: str


Call = Suspension | Delete | Evict | DeleteAll | Command | Cordon


def replace_method_of(top: TopOwner) -> ReplaceMethod | None:
    """How this object is restarted; None if it cannot be."""
    if top.method is None or top.method.method is ReplaceMethod.NONE or top.why:
        return None
    if top.method.method is ReplaceMethod.SUSPEND and top.target is None:
        return None
    if top.target is not None:
        return ReplaceMethod.SUSPEND
    if top.method.method is ReplaceMethod.COMMAND and not top.deletion_means:
        return ReplaceMethod.DELETE
    return top.method.method
