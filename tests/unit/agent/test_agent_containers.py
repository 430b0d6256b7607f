"""Finding the containers of a pod, in trees as kubelets and runtimes make them."""

from pathlib import Path

import pytest

from kcover_ebpf.agent.containers import Containers
from kcover_ebpf.api.pods import Container, ContainerKind, Pod

UID = "3f2c1a90-0b7d-4f6e-9c21-5d8e7a4b1c02"
ID, SECOND, SANDBOX = "a" * 64, "b" * 64, "0" * 64
SLICE = UID.replace("-", "_")

LAYOUTS = {
    "cgroupfs": f"kubepods/burstable/pod{UID}/{{}}",
    "cgroupfs, guaranteed": f"kubepods/pod{UID}/{{}}",
    "systemd": f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{{}}.scope",
    "systemd, guaranteed": f"kubepods.slice/kubepods-pod{SLICE}.slice/crio-{{}}.scope",
    "its own root": f"kc/node2/kubepods/besteffort/pod{UID}/{{}}",
    "its own root, systemd": (
        f"x.slice/x-kubepods.slice/x-kubepods-pod{SLICE}.slice/docker-{{}}.scope"
    ),
}


def group(path: Path, *pids: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def pod(*containers: Container) -> Pod:
    return Pod("team", "p", UID, "n", "Running", 0.0, None, {}, {}, (), containers)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_containers__every_layout(layout: str, tmp_path: Path) -> None:
    group(tmp_path / layout.format(ID), 1)
    group(tmp_path / layout.format(SECOND), 2)
    group((tmp_path / layout.format(ID)).parent.parent / f"pod{UID[::-1]}" / ID, 3)
    found = Containers([tmp_path]).of_pod(UID)
    assert {container.id for container in found} == {ID, SECOND}
    assert {container.pod_uid for container in found} == {UID}


def test_containers__only_main_containers_have_ranks(tmp_path: Path) -> None:
    for number in (ID, SECOND, SANDBOX):
        group(tmp_path / LAYOUTS["cgroupfs"].format(number), 1)
    made = pod(
        Container("train", ContainerKind.MAIN, ID), Container("log", ContainerKind.SIDECAR, SECOND)
    )
    assert [container.id for container in Containers([tmp_path]).of_ranks(made)] == [ID]


def test_containers__with_several_hierarchies_the_one_that_holds_processes_counts(
    tmp_path: Path,
) -> None:
    group(tmp_path / "v2" / LAYOUTS["cgroupfs"].format(ID))
    group(tmp_path / "v1" / LAYOUTS["cgroupfs"].format(ID), 7)
    (found,) = Containers([tmp_path / "v2", tmp_path / "v1"]).of_pod(UID)
    assert found.path.is_relative_to(tmp_path / "v1")


def test_containers__a_kubelet_that_comes_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("kcover_ebpf.agent.containers.time.monotonic", lambda: now[0])
    containers = Containers([tmp_path])
    assert containers.of_pod(UID) == []
    group(tmp_path / LAYOUTS["cgroupfs"].format(ID), 1)
    # the tree is not walked for each pod that has no group yet
    assert containers.of_pod(UID) == []
    now[0] += 5.1
    assert [container.id for container in containers.of_pod(UID)] == [ID]


def test_containers__a_pod_inside_a_container_of_another_is_not_mixed_up(tmp_path: Path) -> None:
    outer = tmp_path / LAYOUTS["cgroupfs"].format(ID)
    group(outer, 1)
    inner = "00000000-0b7d-4f6e-9c21-5d8e7a4b1c02"
    group(outer / f"kubepods/pod{inner}" / SECOND, 2)
    assert [container.id for container in Containers([tmp_path]).of_pod(UID)] == [ID]
