"""What may be done to which pods: the `FaultPolicy` resource, and which policy applies to a pod.

It also says who is notified of which incidents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import Any

from kcover_ebpf import settings
from kcover_ebpf.api.codec import decode
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.api.job_rules import JobRule, checked
from kcover_ebpf.api.order import SaveSignal
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, PolicyError
from kcover_ebpf.model.verdict import FailureClass
from kcover_ebpf.settings import RestartBudget

MOST_BYTES = 8 * 1024
"""The most bytes of a specification: every agent keeps every policy; a selector of a dozen expressions takes one
KiB.
"""


_OF_RUN = {
    "max_restarts": "use restarts.max",
    "backoff": "use restarts.backoffSeconds",
    "backoff_max": "use restarts.backoffMaxSeconds",
    "grace": "pods have terminationGracePeriodSeconds",
}
"""Keys of a policy file of `run` that have no effect in a cluster -> the key that has."""

ALL_ENDS = frozenset({Phase.RECOVERED, Phase.OBSERVED, Phase.REFUSED, Phase.FAILED})
"""Pseudo-phase of a notification rule without phases: the first phase that ends the incident."""


class Level(Enum):
    """The most that may be done with an armed job; each level includes the lower ones."""

    IGNORE = "Ignore"
    OBSERVE = "Observe"
    SNAPSHOT = "Snapshot"
    SHUTDOWN = "Shutdown"


class Approval(Enum):
    """Whether a restart needs a person's approval."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class _Operator(Enum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Expression:
    """One line of a label selector."""

    key: str
    operator: _Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if the labels match; NotIn also matches a missing label, as in Kubernetes."""
        match self.operator:
            case _Operator.EXISTS:
                return self.key in labels
            case _Operator.DOES_NOT_EXIST:
                return self.key not in labels
            case _Operator.IN:
                return labels.get(self.key) in self.values
            case _Operator.NOT_IN:
                return labels.get(self.key) not in self.values


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector; an empty one matches everything."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[Expression, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if all expressions match."""
        exact = all(labels.get(key) == value for key, value in self.match_labels.items())
        return exact and all(
            match_expression.holds(labels) for match_expression in self.match_expressions
        )


class InspectionAction(Enum):
    """Which failed inspections cordon a node, as an announced fault of a device does."""

    REPORT = "Report"
    """No failed inspection cordons a node."""
    DEVICES = "Devices"
    """Failed checks of a GPU or a network adapter."""
    ALL = "All"
    """Any failed check, including the operator's own."""


@dataclass(frozen=True, slots=True)
class NodeActions:
    """What may be done with a node that has a fatal device fault."""

    cordon: bool = True
    taint: bool = True
    device_taint: bool = True
    inspection: InspectionAction = InspectionAction.REPORT
    clean_rounds: int = 3
    """Clean inspections in a row before it is uncordoned automatically; 0: a person must uncordon it."""
    most_cordons: int = 5
    """After this many cordons within a month it is no longer uncordoned automatically; 0: no limit."""


class AvoidMode(Enum):
    """How new pods of a job avoid the nodes that it failed on."""

    OFF = "Off"
    SOFT = "Soft"
    """They prefer other nodes."""
    HARD = "Hard"
    """They wait for another node."""


@dataclass(frozen=True, slots=True)
class Avoidance:
    """For how long new pods avoid such nodes; an inspection that clears a node ends it earlier."""

    mode: AvoidMode = AvoidMode.SOFT
    seconds: int = 14400


class FrameworkFirst(Enum):
    """Which faults are left to the program's own recovery for a while; never a fault of a device or a node."""

    ANNOUNCED = "Announced"
    """Crashes, if a launcher announces that it restarts failed ranks, or a framework is known to continue without
    them.
    """
    CRASHES = "Crashes"
    """All crashes, whatever launches the program."""
    FAULTS = "Faults"
    """All crashes and hangs."""


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """How the work of a job is saved before its ranks are ended."""

    signal: SaveSignal | None = None
    """Signal sent to the healthy ranks, which then save a checkpoint; None: no signal."""
    seconds: int = 30
    """Longest wait for a checkpoint that is being written or that the signal asked for; 0: no wait."""
    unsaved_seconds: int = 0
    """An inferred fault must be silent for as long as the work since the last complete checkpoint took, up to this."""


@dataclass(frozen=True, slots=True)
class NotifyRule:
    """One notification rule: a target on the operator's list, and the events it is notified of."""

    target: str
    phases: tuple[Phase, ...] = ()
    """Phases to notify of, each once per incident; empty: one message, at the first phase that ends it."""
    classes: tuple[FailureClass, ...] = ()
    """Only incidents with these classes of cause; empty: all."""

    def means(self, status: Status, ends: frozenset[Phase] = ALL_ENDS) -> bool:
        """True if the phase of this status is to be sent; `ends`: the phases that end an incident for the target."""
        if self.classes and (status.failure or FailureClass.UNKNOWN) not in self.classes:
            return False
        if self.phases:
            return status.phase in self.phases
        # an incident that ended by itself before any action or refusal is not worth a message
        went_by = status.phase is Phase.OBSERVED and status.closed_s is not None
        return status.phase in ends and not went_by


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """One policy; the defaults are those of the chart, and apply if no policy selects a pod."""

    selector: Selector = field(default_factory=Selector)
    action: Level = Level.SHUTDOWN
    dry_run: bool = False
    approval: Approval = Approval.AUTOMATIC
    ways: tuple[RestartMethod, ...] = (RestartMethod.IN_PLACE, RestartMethod.REPLACE)
    """Restart methods that are allowed, in any order; the one that leaves most of the job alone is preferred."""
    restarts: RestartBudget = field(default_factory=RestartBudget)
    force_delete: bool = False
    avoid: Avoidance = field(default_factory=Avoidance)
    framework_first: FrameworkFirst = FrameworkFirst.ANNOUNCED
    framework_first_seconds: int = 60
    """Seconds for which such a fault is left to the program."""
    save: SavePolicy = field(default_factory=SavePolicy)
    node: NodeActions = field(default_factory=NodeActions)
    thresholds: Mapping[str, str] = field(default_factory=dict)
    job_rules: tuple[JobRule, ...] = ()
    """Rules for the logs of the job."""
    notify: tuple[NotifyRule, ...] = ()
    """Notification rules for its incidents."""
    evidence_logs: bool = True
    """True: the ends of its logs are kept as evidence, as the program wrote them except for recognised secrets."""

    def settings(self) -> settings.Policy:
        """The thresholds merged with their defaults; raises `PolicyError` for a key without effect or a wrong unit."""
        for key in self.thresholds:
            if key in _OF_RUN:
                raise PolicyError(f"thresholds: {key} has no effect in a cluster; {_OF_RUN[key]}")
        table = {key: _number(value) for key, value in self.thresholds.items()}
        return settings.Policy.of(table, "thresholds")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The operator's limits for every policy, since users write policies. A policy that exceeds one gets the limit."""

    max_restarts: int = 10
    """Restarts of one job within its window: three times the default of a policy."""
    window_seconds: int = 3600
    """The shortest window: in a shorter one, a budget limits nothing."""
    backoff_seconds: int = 10
    """The shortest pause before a second restart: the default of a policy."""

    def of(self, policy: FaultPolicy) -> FaultPolicy:
        """The policy with each value limited."""
        asked = policy.restarts
        allowed = RestartBudget(
            max=min(asked.max, self.max_restarts),
            window_seconds=max(asked.window_seconds, self.window_seconds),
            backoff_seconds=max(asked.backoff_seconds, self.backoff_seconds),
            backoff_max_seconds=max(asked.backoff_max_seconds, self.backoff_seconds),
        )
        return replace(policy, restarts=allowed)


def _number(text: str) -> object:
    # the schema has strings only; a plain number in them is meant as a number
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy with its namespace and name."""

    namespace: str
    name: str
    policy: FaultPolicy


def policy_of(api: Mapping[str, Any]) -> NamedPolicy:
    """The policy in an object of the API; raises `ObjectError`, also for thresholds without meaning."""
    metadata = api.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, Mapping) else "?"
    namespace = metadata.get("namespace", "") if isinstance(metadata, Mapping) else ""
    try:
        if len(json.dumps(api.get("spec"))) > MOST_BYTES:
            raise ObjectError(f"its spec is larger than {MOST_BYTES >> 10} KiB")
        policy = decode(FaultPolicy, api.get("spec") or {}, "spec")
        policy.settings()
        checked(policy.job_rules)
    except (ObjectError, PolicyError) as error:
        raise ObjectError(f"FaultPolicy {name}: {error}") from error
    return NamedPolicy(str(namespace), str(name), policy)


def refused(api: Mapping[str, Any]) -> NamedPolicy:
    """Replacement for a policy that cannot be read: nothing is done to any pod that it may have selected.

    Without it the defaults would apply, which restart jobs; the author may have wanted less.
    """
    metadata, spec = api.get("metadata"), api.get("spec")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    try:
        raw = spec.get("selector") if isinstance(spec, Mapping) else None
        selector = decode(Selector, raw or {}, "spec.selector")
    except ObjectError:
        selector = Selector()
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", "?"))
    return NamedPolicy(namespace, name, observed_only(selector))


def observed_only(selector: Selector) -> FaultPolicy:
    """A policy that does nothing to these pods or their nodes."""
    nodes = NodeActions(
        cordon=False, taint=False, device_taint=False, clean_rounds=0, most_cordons=0
    )
    return FaultPolicy(selector=selector, action=Level.OBSERVE, node=nodes)


def holding(
    policies: Iterable[NamedPolicy], namespace: str, labels: Mapping[str, str]
) -> NamedPolicy | None:
    """The first policy by name that selects a pod with these labels; None: the defaults apply."""
    ours = (policy for policy in policies if policy.namespace == namespace)
    fitting = [policy for policy in ours if policy.policy.selector.holds(labels)]
    return min(fitting, key=lambda policy: policy.name, default=None)
