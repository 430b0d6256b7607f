"""Events that ask for a recovery, and the pods that they are about."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.controller.event_recorder import NEED_RECOVERY
from kcover_ebpf.kube.reflector import Change, Event

LABELS = {"training.kubeflow.org/job-name": "j"}


class FakePods:
    """Any pod that is asked for is there."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        parts = path.split("/")
        name, namespace = parts[-1], parts[-3]
        return {
            "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": LABELS},
            "spec": {"nodeName": "n"},
        }


def asks(namespace: str, pod: str, at_s: float) -> Event:
    return Event(
        Change.SET,
        {
            "metadata": {"annotations": {NEED_RECOVERY: "true"}},
            "involvedObject": {"namespace": namespace, "name": pod},
            "lastTimestamp": rfc3339.to_text(at_s),
        },
    )
