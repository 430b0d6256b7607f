"""Whose a volume of pods is that an inspection found at fault: its pod, and the claim that the pod has it by.

    KUBELET/pods/UID/volumes/kubernetes.io~csi/VOLUME/mount     (kubelet, pkg/volume/csi; VOLUME: the PersistentVolume)

The kubelet's folder names the pod by its uid and the PersistentVolume; the claim is in the pod's own object, which an
inspection does not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from kcover_ebpf.api.pods import Pod
from kcover_ebpf.inspection.result import PartResult

_VOLUME = re.compile(r"/pods/(?P<uid>[0-9a-f-]{1,64})/(?:volumes/[^/ ]+~csi|volume-subpaths)/")


def named(part: PartResult, pod_of: Callable[[str], Pod | None]) -> PartResult:
    """The part, with pod and claim behind each sentence about a volume; `pod_of`: the pod with that uid."""
    return replace(part, evidence=tuple(_with_pod(text, pod_of) for text in part.evidence))


def _with_pod(text: str, pod_of: Callable[[str], Pod | None]) -> str:
    match = _VOLUME.search(text)
    pod = pod_of(match["uid"]) if match else None
    if pod is None:
        return text
    claims = ", ".join(pod.claims)
    whose = "" if not claims else f", claim {claims}"
    if len(pod.claims) > 1:
        whose = f", one of its claims {claims}"
    return f"{text}; pod {pod.namespace}/{pod.name}{whose}"
