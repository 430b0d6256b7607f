"""Finds the container of a control group from the group's path alone.

Known: containerd, CRI-O and docker (cri-dockerd), with the systemd and the cgroupfs driver, in cgroup v1, v2 and
both at once, below any prefix (a kubelet with its own root, a node inside a container), and groups that a container
creates below its own.

    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
    /kubepods/burstable/podUID/ID

Source: kubelet pkg/kubelet/cm (node container manager, ToSystemd), the runtimes' cgroup parents.
"""

from __future__ import annotations

import re

from kcover_ebpf.dataclass import dataclass

_POD_SYSTEMD = re.compile(r"(?:[^/]+-)?kubepods(?:-[a-z]+)?-pod([0-9a-fA-F_]{32,36})\.slice")
_POD_CGROUPFS = re.compile(
    r"pod([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{32})"
)
_CONTAINER = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod)-)?([0-9a-f]{64})(?:\.scope)?")


@dataclass(frozen=True, slots=True)
class ContainerPath:
    """Pod uid and container id found in the path of a control group."""

    pod_uid: str
    container_id: str | None
    """Id given by the runtime; None for the pod's own group, above its containers."""


def containers_of(path: str) -> tuple[ContainerPath, ...]:
    """The containers (or pods) that a cgroup path lies in, the innermost first; empty outside pods.

    There is more than one if a kubelet itself runs in a pod. A static pod's uid has no dashes (it is a hash of its
    manifest). A path that begins with ".." is relative to a cgroup namespace.
    """
    # a systemd path given to a containerd that creates groups itself: SLICE:cri-containerd:ID
    parts = path.strip("/").replace(":cri-containerd:", "/").split("/")
    found = []
    for index, part in enumerate(parts):
        uid = _pod_uid(parts[:index], part)
        if uid is not None:
            below = parts[index + 1] if index + 1 < len(parts) else ""
            found.append(ContainerPath(uid, _container_id(below)))
    return tuple(reversed(found))


def _pod_uid(above: list[str], part: str) -> str | None:
    if match := _POD_SYSTEMD.fullmatch(part):
        return match[1].replace("_", "-").lower()
    # a bare "podUID" counts only below the kubelet's own groups
    is_kubelet = any(text in ("kubepods", "..") or text.startswith("kubepods") for text in above)
    match = _POD_CGROUPFS.fullmatch(part) if is_kubelet else None
    return match[1].lower() if match else None


def _container_id(part: str) -> str | None:
    # cri-o runs its monitor in "crio-conmon-ID.scope" next to the container: not a rank
    match = _CONTAINER.fullmatch(part)
    return match[1] if match else None


def containers_of_process(proc_cgroup: str) -> tuple[ContainerPath, ...]:
    """As `containers_of`, from the text of /proc/PID/cgroup: the hierarchy with the deepest match, v2 before v1."""
    found = []
    for line in proc_cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdecimal():
            found.append((number != "0" or controllers != "", containers_of(path)))
    found.sort(key=lambda pair: (-_depth(pair[1]), pair[0]))
    return found[0][1] if found else ()


def _depth(containers: tuple[ContainerPath, ...]) -> int:
    return sum(1 if container.container_id is None else 2 for container in containers)
