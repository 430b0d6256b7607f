"""The state of a job in its own object, as far as a restart depends on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kcover_ebpf.recovery.restart.context import GangPod
from kcover_ebpf.recovery.restart.methods import KindMethod, at, group_of, path

_HYPERPOD = "sagemaker.amazonaws.com"
_AUTO_RESUME = f"{_HYPERPOD}/enable-job-auto-resume"
_ENDS = ("Complete", "Completed", "Succeeded", "Finished", "Failed", "Aborted", "Terminated")


def ended_of(method: KindMethod, raw: Mapping[str, Any]) -> str | None:
    """Complete, Succeeded or the like once a job is over, Failed if it failed; None before."""
    if method.end is not None:
        value = at(raw, method.end.path)
        if any(is_value(value, failed) for failed in method.end.failed):
            return "Failed"
        return str(value) if any(is_value(value, good) for good in method.end.succeeded) else None
    for map_ in _maps(at(raw, path("status.conditions"))):
        if map_.get("status") == "True" and map_.get("type") in _ENDS:
            return str(map_["type"])
    phases = (at(raw, path("status.state.phase")), at(raw, path("status.jobDeploymentStatus")))
    return next((phase for phase in phases if isinstance(phase, str) and phase in _ENDS), None)


def counts_restarts(method: KindMethod, raw: Mapping[str, Any], pods: Sequence[GangPod]) -> bool:
    """True if the controller of a job counts restarts of containers of these pods, or reacts to them."""
    if at(raw, path("spec.failurePolicy.restartStrategy")) == "InPlaceRestart":
        return True  # a JobSet that does so by itself (KEP-467) fails after maxRestarts, whatever caused them
    if method.deletes_ended and any(pod.restart_policy == "Never" for pod in pods):
        return True
    counted = any(pod.restart_policy != "Never" for pod in pods)
    return counted and bool(method.in_place_costs) and at(raw, method.in_place_costs) is not None


def reacts_to_deletions(raw: Mapping[str, Any]) -> bool:
    """True if a policy of a Volcano Job gives the deletion of a pod a meaning."""
    rules = _maps(at(raw, path("spec.policies")))
    for task in _maps(at(raw, path("spec.tasks"))):
        rules += _maps(task.get("policies"))
    events = [rule.get("event") for rule in rules]
    for rule in rules:
        several = rule.get("events")
        events += several if isinstance(several, list) else []
    return any(event in ("PodEvicted", "*", "AnyEvent") for event in events)


def ignores_disruptions(raw: Mapping[str, Any]) -> bool:
    """True if a batch Job recreates an evicted pod without counting a failure (KEP-3329)."""
    for rule in _maps(at(raw, path("spec.podFailurePolicy.rules"))):
        wanted = [entry.get("type") for entry in _maps(rule.get("onPodConditions"))]
        if "DisruptionTarget" in wanted:
            return rule.get("action") == "Ignore"
    return False


def waits_for_ends(raw: Mapping[str, Any]) -> bool:
    """True if a batch Job creates a pod only once the one that it replaces has ended (KEP-3939)."""
    return at(raw, path("spec.podReplacementPolicy")) == "Failed"


def version_of(raw: Mapping[str, Any]) -> int:
    """A number that grows with each restart by a Command of Volcano."""
    counts = (at(raw, path("status.version")), at(raw, path("status.retryCount")))
    return sum(count for count in counts if isinstance(count, int))


def pod_count_of(method: KindMethod, raw: Mapping[str, Any]) -> int | None:
    """Number of pods that a job is to have; None if it does not say."""
    counts = [at(raw, keys) for keys in method.pod_counts]
    known = [count for count in counts if isinstance(count, int) and not isinstance(count, bool)]
    return sum(known) if known else None


def gang_of_run(method: KindMethod, raw: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Labels of the pods of its present run, if each run has its own; None if none runs, or all runs have the same."""
    if method.gang is None:
        return None
    label, keys = method.gang
    value = at(raw, keys)
    return {label: value} if isinstance(value, str) and value else None


def operator_of(api_version: str, raw: Mapping[str, Any] | None = None) -> str | None:
    """The operator that restarts a job from outside, by its kind or its author's annotation; None if none is known."""
    annotations = at(raw, path("metadata.annotations"))
    asked = isinstance(annotations, Mapping) and annotations.get(_AUTO_RESUME) == "true"
    return "HyperPod" if asked or group_of(api_version) == _HYPERPOD else None


def is_value(value: object, wanted: object) -> bool:
    """True if a field has this value, which may be of any plain type."""
    # 1 is equal to True
    return isinstance(value, bool) is isinstance(wanted, bool) and value == wanted


def _maps(raw: object) -> list[Mapping[str, Any]]:
    """The objects in a list, without other entries that a job's author may have added."""
    return [entry for entry in raw if isinstance(entry, Mapping)] if isinstance(raw, list) else []
