"""Whose a volume at fault is: the pod and its claim, which the kubelet's folders do not name."""

from __future__ import annotations

import pytest

from kcover_ebpf.agent.node_health.inspector import with_pod_named
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.result import PartResult

UID = "8f1d3a52-0a4e-4c6e-9a51-4be3e9ba0001"
FOLDER = f"/var/lib/kubelet/pods/{UID}"
NFS = "nfs4, filer:/export, CSI driver nfs.csi.k8s.io"
WRONG = f"{FOLDER}/volumes/kubernetes.io~csi/pvc-7c1e/mount ({NFS}): no answer within 5 s"
FUSE = (
    f"{FOLDER}/volume-subpaths/pvc-7c1e/main/0 (fuse.juicefs, JuiceFS:data): no answer within 5 s"
)


def pod(*volumes: dict[str, object]) -> Pod:
    metadata = {"name": "trainer-0", "namespace": "team", "uid": UID}
    return pod_of({"metadata": metadata, "spec": {"volumes": list(volumes)}, "status": {}})


def claim(name: str) -> dict[str, object]:
    return {"name": "x", "persistentVolumeClaim": {"claimName": name}}


WHOSE = {
    "the claim": (WRONG, (claim("data"), {"name": "tmp", "emptyDir": {}}), ", claim data"),
    "of a part of a volume": (FUSE, (claim("data"),), ", claim data"),
    "one that was made for the pod": (WRONG, ({"name": "scratch", "ephemeral": {}},), ", claim trainer-0-scratch"),
    "which of several is not known": (WRONG, (claim("a"), claim("b")), ", one of its claims a, b"),
    "a volume without a claim": (WRONG, (), ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "volumes", "whose"), WHOSE.values(), ids=WHOSE)
def test_with_pod_named__pod_and_claim_are_behind_what_is_wrong(
    text: str, volumes: tuple[dict[str, object], ...], whose: str
) -> None:
    part = PartResult("storage", Result.WARN, (text, "/ (ext4, /dev/vda): answered in 0.1 ms"))
    found = with_pod_named(part, {UID: pod(*volumes)}.get)
    assert found.evidence == (f"{text}; pod team/trainer-0{whose}", part.evidence[1])
    assert found.result is Result.WARN


@pytest.mark.parametrize(
    "text",
    [
        WRONG.replace(UID, "8f1d3a52-0a4e-4c6e-9a51-4be3e9ba0002"),
        f"{FOLDER}/volumes/kubernetes.io~empty-dir/cache (ext4, /dev/vda): no answer within 5 s",
        "/data (nfs4, filer:/export): no answer within 5 s",
    ],
    ids=["a pod that is not known", "no volume of a driver", "of no pod"],
)
def test_with_pod_named__what_is_of_no_known_claim_stays_as_it_is(text: str) -> None:
    part = PartResult("storage", Result.FAIL, (text,))
    assert with_pod_named(part, {UID: pod(claim("data"))}.get) == part


def test_pod_of__keeps_at_most_16_claims() -> None:
    assert pod(*(claim(f"c{number}") for number in range(99))).claims == tuple(
        f"c{number}" for number in range(16)
    )
