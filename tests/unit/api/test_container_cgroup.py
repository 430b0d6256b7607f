"""Which container a cgroup path belongs to, for every runtime and driver we know."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.api.container_cgroup import ContainerPath, containers_of, containers_of_process

UID = "3f2c1a90-0b7d-4f6e-9c21-5d8e7a4b1c02"
OTHER = "00000000-0b7d-4f6e-9c21-5d8e7a4b1c02"
STATIC = "d41d8cd98f00b204e9800998ecf8427e"
ID = "ab" * 32
SLICE = UID.replace("-", "_")
INSIDE = (ContainerPath(UID, ID),)

PATHS = {
    "containerd, systemd driver": (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "containerd, systemd driver, guaranteed": (
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "containerd without its own systemd support": (
        f"/system.slice/containerd.service/kubepods-besteffort-pod{SLICE}.slice:cri-containerd:{ID}",
        INSIDE,
    ),
    "containerd, cgroupfs driver": (f"/kubepods/burstable/pod{UID}/{ID}", INSIDE),
    "containerd, cgroupfs driver, guaranteed": (f"/kubepods/pod{UID}/{ID}", INSIDE),
    "cri-o, systemd driver": (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/crio-{ID}.scope",
        INSIDE,
    ),
    "cri-o's group in the group": (
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container",
        INSIDE,
    ),
    "cri-o, cgroupfs driver": (f"/kubepods/besteffort/pod{UID}/crio-{ID}", INSIDE),
    "cri-o's monitor is no container": (
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-conmon-{ID}.scope",
        (ContainerPath(UID, None),),
    ),
    "docker, systemd driver": (
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/docker-{ID}.scope",
        INSIDE,
    ),
    "docker, cgroupfs driver": (f"/kubepods/besteffort/pod{UID}/{ID}", INSIDE),
    "a kubelet with its own root": (f"/kc-node2/kubepods/burstable/pod{UID}/{ID}", INSIDE),
    "a kubelet with its own root, systemd": (
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "a group that the container made": (f"/kubepods/pod{UID}/{ID}/init.scope/worker", INSIDE),
    "a static pod": (f"/kubepods/burstable/pod{STATIC}/{ID}", (ContainerPath(STATIC, ID),)),
    "a kubelet inside a pod": (
        f"/kubepods/pod{OTHER}/{ID}/kubepods/burstable/pod{UID}/{ID}",
        (ContainerPath(UID, ID), ContainerPath(OTHER, ID)),
    ),
    "seen from a cgroup namespace, cgroupfs": (f"/../../pod{UID}/{ID}", INSIDE),
    "seen from a cgroup namespace, systemd": (
        f"/../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "the pod's own group": (f"/kubepods/burstable/pod{UID}", (ContainerPath(UID, None),)),
    "a service of the host": ("/system.slice/ssh.service", ()),
    "a group of the host that looks like a pod": (f"/games/pod{UID}/{ID}", ()),
    "the kubelet's group": ("/kubepods/burstable", ()),
    "the root": ("/", ()),
    "docker without Kubernetes": (f"/docker/{ID}", ()),
    "a short id": (f"/kubepods/pod{UID}/{ID[:12]}", (ContainerPath(UID, None),)),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS.keys())
def test_containers_of__container_of_a_path(path: str, expected: tuple[ContainerPath, ...]) -> None:
    assert containers_of(path) == expected


V2 = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
V1 = f"12:memory:/kubepods/burstable/pod{UID}/{ID}\n4:cpu,cpuacct:/\n1:name=systemd:/\n"
PROCESSES = {
    "v2": (V2, INSIDE),
    "v1": (V1, INSIDE),
    "hybrid, both know": (V1 + V2, INSIDE),
    "hybrid, v2 is used for services only": (V1 + "0::/system.slice/containerd.service\n", INSIDE),
    "v2 knows the pod alone, v1 the container": (V1 + f"0::/kubepods/pod{UID}\n", INSIDE),
    "a process of the host": ("0::/user.slice/user-0.slice\n", ()),
    "a colon in the path": (f"0::/kubepods/pod{UID}/{ID}/a:b\n", INSIDE),
    "gone": ("", ()),
    "not the file": ("hello\nworld: 5\n", ()),
}


@pytest.mark.parametrize(("text", "expected"), PROCESSES.values(), ids=PROCESSES.keys())
def test_containers_of_process__container_of_a_process(
    text: str, expected: tuple[ContainerPath, ...]
) -> None:
    assert containers_of_process(text) == expected


uids = st.uuids().map(str)
ids = st.text("0123456789abcdef", min_size=64, max_size=64)
prefixes = st.lists(st.text("abcdefgh-.", min_size=1, max_size=8), max_size=3)


@given(uids, ids, prefixes, prefixes, st.sampled_from(["", "burstable", "besteffort"]))
def test_containers_of__any_prefix_and_any_group_below(
    uid: str, container: str, above: list[str], below: list[str], qos: str
) -> None:
    above = [text for text in above if text != ".."]
    plain = [*above, "kubepods", *([qos] if qos else []), f"pod{uid}", container, *below]
    name = "-".join(["kubepods", *([qos] if qos else []), f"pod{uid.replace('-', '_')}.slice"])
    systemd = [*above, "kubepods.slice", name, f"cri-containerd-{container}.scope", *below]
    for parts in (plain, systemd):
        assert containers_of("/" + "/".join(parts)) == (ContainerPath(uid, container),)


@given(st.text())
@example(V2)
def test_containers_of__any_text_is_read(text: str) -> None:
    for found in (*containers_of(text), *containers_of_process(text)):
        assert found.container_id is None or found.container_id in text
