"""Brings a test bed up, or what is missing of it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.cluster import (
    addons,
    build,
    cgroups,
    components,
    config,
    down,
    images,
    kube,
    layout,
    network,
    nodes,
    pki,
    state,
    versions,
)
from testbed.cluster.errors import Usage
from testbed.cluster.layout import Bed
from testbed.cluster.probes import wait
from testbed.cluster.processes import boot_id
from testbed.cluster.state import State
from testbed.cluster.versions import Kubernetes

OTHER_PROGRAMS = ("coredns", "helm")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asked for; None where it said nothing."""

    nodes: int | None
    kubernetes: str | None
    controllers: list[str]


def say(line: str) -> None:
    """Print for the person at the keyboard."""
    print(f"testbed: {line}", flush=True)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """One line of progress, with the seconds it took."""
    started = time.monotonic()
    yield
    say(f"{name:<24} {time.monotonic() - started:5.1f} s")


def bring_up(bed: Bed, wanted: Wanted) -> State:
    """Make the test bed what is wanted; raises Usage where that cannot be."""
    running = state.load(bed)
    if running is not None:
        _start(running, _check_running(running, wanted), wanted)
    else:
        release = versions.kubernetes(wanted.kubernetes)
        if state.owner(bed) is not None or bed.folder.exists():
            down.bring_down(bed)  # the rest of one that was killed, or of another boot
        with _free_port() as port:
            running = _claim(bed, release, port, wanted.nodes or 2)
            _start(running, release, wanted)
    addons.install(running, wanted.controllers, stage, say)
    return running


def _check_running(running_state: State, wanted: Wanted) -> Kubernetes:
    release = versions.by_version(running_state.kubernetes)
    if wanted.kubernetes is not None and versions.kubernetes(wanted.kubernetes) != release:
        raise Usage(
            f"this test bed runs Kubernetes {running_state.kubernetes}: "
            "take it down first, or choose another --name"
        )
    if wanted.nodes is not None and wanted.nodes < running_state.nodes:
        raise Usage(f"this test bed has {running_state.nodes} nodes: take it down first")
    return release


def _claim(bed: Bed, release: Kubernetes, port: int, count: int) -> State:
    for shared in (Path("/var"), Path("/run")):
        if bed.folder.is_relative_to(shared):
            raise Usage(f"a node hides {shared}: use a checkout in another folder")
    bed.folder.mkdir(parents=True)
    bed.mark.symlink_to(bed.folder)
    return State(bed, boot_id(), release.version, port, count)


@contextmanager
def _free_port(first: int = layout.API_PORT) -> Iterator[int]:
    """The usual port of the API server, or the next one that no process on the host listens on.

    Until its own listens there, a name in the kernel keeps it from other test beds that come up; it goes with us.
    """
    for port in range(first, first + 1000):
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0kcover-testbed-port-{port}")
                with socket.socket() as attempt:
                    attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield port
            return
    raise Usage("no free port for the API server on 127.0.0.1")


def _start(running_state: State, release: Kubernetes, wanted: Wanted) -> None:
    running_state.nodes = max(running_state.nodes, wanted.nodes or 0)
    running_state.save()
    bed = running_state.bed
    cgroups.create(bed.control_cgroup)
    cgroups.weigh(bed.cgroup, running_state.nodes * (os.cpu_count() or 1))
    with stage("programs"):
        _link_programs(bed, fill_cache(release) if _misses_programs(bed) else [])
    with stage("images"):
        images.store(say)
    with stage("network and keys"):
        network.create_control(bed)
        pki.create_authority(bed)
        pki.create_admin(bed, running_state.api_port)
        config.write_control(bed)
    with stage("control plane"):
        for component in components.control_plane(bed, release, running_state.api_port):
            components.ensure(running_state, component)
        kube.apply(bed, config.CLUSTER_OBJECTS)
    for node in bed.nodes(running_state.nodes):
        with stage(node.name):
            nodes.ensure(running_state, node)
    components.ensure(running_state, components.control_proxy(bed))
    with stage("nodes ready"):
        wait("a node", lambda: kube.nodes_ready(bed) >= running_state.nodes, 120)


def fill_cache(release: Kubernetes) -> list[Path]:
    """Make the missing programs, which are returned, and in parallel the missing images, which wait for disks."""
    with ThreadPoolExecutor(1) as beside:
        store = beside.submit(images.store, say)
        programs = build.kubernetes(release, say)
        programs += [build.program(versions.program(name), say) for name in OTHER_PROGRAMS]
        store.result()
    return programs


def _misses_programs(bed: Bed) -> bool:
    return not all(
        (bed.bin / name).exists() for name in (*build.KUBERNETES_PROGRAMS, *OTHER_PROGRAMS)
    )


def _link_programs(bed: Bed, programs: Sequence[Path]) -> None:
    """Links to the programs in the cache; they are checked once, when the links are made."""
    bed.bin.mkdir(exist_ok=True)
    for program in programs:
        link = bed.bin / program.name
        link.unlink(missing_ok=True)
        link.symlink_to(program)
