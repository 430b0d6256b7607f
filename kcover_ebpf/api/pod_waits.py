"""Why a pod does not run yet, from the status that scheduler and kubelet write. Pure.

A status has two kinds of reasons. A pod that is being started goes through some of them every time. All others are
obstacles: the pod rests until they are removed or a back-off is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kcover_ebpf.api.json_values import list_of, map_of, text_of
from kcover_ebpf.dataclass import dataclass

_MOST_REASON, _MOST_DETAIL = 64, 120
_ORDINARY = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a kubelet that starts a pod (Kubernetes, pkg/kubelet/kubelet_pods.go); "" if none is given yet."""


@dataclass(frozen=True, slots=True)
class PodWait:
    """Why a pod does not run yet."""

    reason: str
    """One word of the scheduler or the kubelet, like Unschedulable or ImagePullBackOff; empty if neither gave one."""
    detail: str = ""
    """Which container it is about, or what the scheduler says; at most 120 printable characters."""

    @property
    def is_obstacle(self) -> bool:
        """False while a kubelet starts the pod as it starts every pod."""
        return self.reason not in _ORDINARY

    @property
    def text(self) -> str:
        """The reason as a clause for people."""
        return f"{self.reason or 'no container was started yet'}" + (
            f" ({self.detail})" if self.detail else ""
        )


def wait_of(spec: Mapping[str, Any], status: Mapping[str, Any]) -> PodWait | None:
    """Why containers of a pod do not run yet: its first obstacle, else what is being started; None if nothing is.

    `spec` and `status` are those of an object of the API. None also for a pod that has ended. What does not have the
    form of the API is ignored.
    """
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    for condition in map(map_of, list_of(status.get("conditions"))):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _wait(condition.get("reason"), condition.get("message"))
    waits = [*_of_init(spec, status), *_of_main(spec, status)]
    return next((wait for wait in waits if wait.is_obstacle), next(iter(waits), None))


def _of_init(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[PodWait]:
    found = _statuses(status, "initContainerStatuses")
    for container in map(map_of, list_of(spec.get("initContainers"))):
        name = text_of(container.get("name"))
        state = _state(found, name)
        if "running" in state and container.get("restartPolicy") != "Always":
            yield _wait("PodInitializing", f"init container {name} runs")
        elif (wait := _of_state(state, f"init container {name}")) is not None:
            yield wait


def _of_main(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[PodWait]:
    found = _statuses(status, "containerStatuses")
    for container in map(map_of, list_of(spec.get("containers"))):
        name = text_of(container.get("name"))
        if (wait := _of_state(_state(found, name), f"container {name}")) is not None:
            yield wait


def _of_state(state: Mapping[str, Any], who: str) -> PodWait | None:
    ended = state.get("terminated")
    if isinstance(ended, Mapping):
        code = ended.get("exitCode")
        return _wait(ended.get("reason") or "Error", f"{who}, exit code {code}") if code else None
    if "running" in state:
        return None
    waiting = map_of(state.get("waiting"))
    return _wait(waiting.get("reason"), who if waiting else "")


def _wait(reason: object, detail: object) -> PodWait:
    word = "".join(letter for letter in text_of(reason) if letter.isascii() and letter.isalnum())
    words = "".join(letter for letter in text_of(detail) if letter.isprintable())
    return _shared(word[:_MOST_REASON], words[:_MOST_DETAIL])


@lru_cache(maxsize=4096)
def _shared(reason: str, detail: str) -> PodWait:
    # thousands of pods wait for the same reason
    return PodWait(reason, detail)


def _statuses(status: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    return {text_of(entry.get("name")): entry for entry in map(map_of, list_of(status.get(key)))}


def _state(statuses: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return map_of(statuses.get(name, {}).get("state"))
