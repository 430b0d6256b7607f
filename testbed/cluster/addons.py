"""The job controllers: built, made into images, loaded on every node and installed.

Each has a kustomization in controllers/NAME that takes the project's own manifests out of its Go
module and changes as little as it can: the image, and what it asks of the machine.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from testbed.cluster import build, cache, images, kube, nodes, shell, versions
from testbed.cluster.errors import Usage
from testbed.cluster.layout import Bed
from testbed.cluster.state import State
from testbed.cluster.versions import Controller, Program

FOLDER = Path(__file__).with_name("controllers")
DEFAULT = ("training-operator", "jobset")
USER = "65532:65532"
"""Some of them insist on not being root."""
PLACEHOLDER = re.compile(r"@(dir|version):([a-z-]+)@")
Stage = Callable[[str], AbstractContextManager[None]]


def names() -> list[str]:
    """All that can be asked for."""
    return [controller.name for controller in versions.controllers()]


def chosen(text: str | None) -> list[str]:
    """The controllers that `--controllers` means, with what they need before them.

    None is the default; raises Usage for one that is not known.
    """
    if text is None:
        return list(DEFAULT)
    if text == "none":
        return []
    if text == "all":
        return [entry.name for entry in versions.controllers() if not entry.asked_for]
    wanted: list[str] = []
    for name in text.split(","):
        if name not in names():
            raise Usage(f"--controllers {name}: choose from {', '.join(names())}, all, none")
        for needed in (*versions.controller(name).needs, name):
            if needed not in wanted:
                wanted.append(needed)
    return wanted


def install(state: State, wanted: list[str], stage: Stage, say: shell.Say) -> None:
    """Install the controllers that are wanted and not there yet, and wait until they are ready."""
    new = [name for name in wanted if name not in state.controllers]
    for name in new:
        with stage(name):
            _install(state, versions.controller(name), say)
    for name in new:
        with stage(f"{name} ready"):
            _wait(state.bed, versions.controller(name))
            state.controllers.append(name)
            state.save()


def load_images(state: State, name: str, say: shell.Say) -> None:
    """Put the images of a controller on every node."""
    for program in versions.controller(name).programs:
        archive = _image(versions.program(program), say)
        for node in state.bed.nodes(state.nodes):
            images.load(nodes.path(state, node, nodes.CONTAINERD_SOCKET), archive)


def healthy(bed: Bed, name: str) -> bool:
    """Whether all deployments of the controller are available."""
    found = kube.get(bed, "deployments", f"--namespace={versions.controller(name).namespace}")
    return bool(found) and all(kube.condition(entry, "Available") for entry in found)


def _install(state: State, controller: Controller, say: shell.Say) -> None:
    load_images(state, controller.name, say)
    manifest = _manifest(state.bed, controller)
    # Kinds first: the objects of such a kind in the same manifest are unknown until then.
    for _ in range(2):
        applied = kube.try_apply(state.bed, manifest.read_text())
        if applied:
            return
    kube.apply(state.bed, manifest.read_text())


def _wait(bed: Bed, controller: Controller) -> None:
    namespace = f"--namespace={controller.namespace}"
    arguments = ["wait", "deployments", "--all", "--for=condition=Available", "--timeout=300s"]
    kube.ctl(bed, namespace, *arguments, timeout_s=310)


def _image(program: Program, say: shell.Say) -> Path:
    binary = build.program(program, say)
    archive = cache.folder("images", "programs") / f"{program.name}-{program.version}.tar"
    with cache.locked(archive.name):
        if not archive.exists():
            name = f"localhost/kcover-{program.name}:{program.version}"
            images.static(archive, name, binary, USER)
    return archive


def _manifest(bed: Bed, controller: Controller) -> Path:
    """The rendered manifest in the cache; rendered from the module's source where it is missing."""
    source = FOLDER / controller.name
    texts = {file.name: file.read_text() for file in sorted(source.iterdir())}
    programs = [versions.program(name) for name in controller.programs]
    made_of = cache.key(*texts.values(), *(program.version for program in programs))
    rendered = cache.folder("manifests") / f"{controller.name}-{made_of}.yaml"
    with cache.locked(rendered.name):
        if not rendered.exists():
            work = cache.folder("build", "manifests", controller.name)
            for name, text in texts.items():
                (work / name).write_text(PLACEHOLDER.sub(lambda m: _filled(m, work), text))
            said = shell.text(
                bed.bin / "kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", work
            )
            rendered.write_text(said)
            shutil.rmtree(work)
    return rendered


def _filled(match: re.Match[str], work: Path) -> str:
    program = versions.program(match[2])
    if match[1] == "version":
        return program.version
    return os.path.relpath(build.module_folder(program), work)
