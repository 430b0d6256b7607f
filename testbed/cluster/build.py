"""Builds the programs from Go modules into the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.cluster import cache, shell, versions
from testbed.cluster.errors import Failure
from testbed.cluster.versions import Kubernetes, Program

KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)


def kubernetes(
    release: Kubernetes, say: shell.Say, names: Sequence[str] = KUBERNETES_PROGRAMS
) -> list[Path]:
    """These programs of one Kubernetes release, built where they are missing.

    k8s.io/kubernetes cannot be installed by its name, because its go.mod replaces the staging
    modules by folders. So a module of our own requires it, and replaces each of them by its
    published version. That of the default release requires the programs built with it as well.
    """
    target = cache.folder("bin", f"kubernetes-{release.version}")
    programs = [target / name for name in names]
    with cache.locked(target.name):
        missing = [program for program in programs if not cache.intact(program)]
        if missing:
            work = _kubernetes_module(release, say)
            for program in missing:
                package = f"k8s.io/kubernetes/cmd/{program.name}"
                _build(program, work, package, _stamp(release), say)
    return programs


def program(wanted: Program, say: shell.Say) -> Path:
    """One program, built where it is missing: with Kubernetes, in its module's folder, or in a module of our own."""
    if wanted.with_kubernetes:
        return _guest(wanted, versions.kubernetes(None), say)
    made_of = [wanted.version, *([cache.key(wanted.main, *wanted.requires)] if wanted.main else [])]
    path = cache.folder("bin", "-".join([wanted.name, *made_of])) / wanted.name
    with cache.locked(path.parent.name):
        if not cache.intact(path):
            folder = _own_module(wanted) if wanted.main else module_folder(wanted)
            _build(path, folder, wanted.package, [], say, cgo=wanted.cgo)
    return path


def _own_module(wanted: Program) -> Path:
    """A module of our own with a program's `main`, by the versions that it names."""
    work = cache.folder("build", f"{wanted.name}-{wanted.version}")
    _pinned(f"{wanted.module}@{wanted.version}", wanted.sum)
    required = [f"{wanted.module} {wanted.version}", *wanted.requires]
    lines = ["module testbed", f"go {versions.go()}", *(f"require {line}" for line in required)]
    (work / "go.mod").write_text("\n".join(lines) + "\n")
    (work / "main.go").write_text(wanted.main)
    # -e: what only the tests of a module need may not be there; what the program needs is missed by its build
    shell.logged(
        cache.folder("log") / "build.log", [*go(), "-C", work, "mod", "tidy", "-e"], _env()
    )
    return work


def _guest(wanted: Program, release: Kubernetes, say: shell.Say) -> Path:
    """A program built with a release of Kubernetes."""
    made_of = [wanted.version, release.version, *([cache.key(wanted.main)] if wanted.main else [])]
    path = cache.folder("bin", "-".join([wanted.name, *made_of])) / wanted.name
    with cache.locked(f"kubernetes-{release.version}"):  # of the module's folder
        if not cache.intact(path):
            _build(path, _kubernetes_module(release, say), _package(wanted), [], say)
    return path


def module_folder(wanted: Program) -> Path:
    """Where Go keeps the module's source; downloaded where it is missing."""
    return Path(_pinned(f"{wanted.module}@{wanted.version}", wanted.sum)["Dir"])


def _kubernetes_module(release: Kubernetes, say: shell.Say) -> Path:
    say(f"fetching the source of Kubernetes {release.version}")
    work = cache.folder("build", f"kubernetes-{release.version}")
    module = _pinned(f"k8s.io/kubernetes@{release.version}", release.sum)
    published = Path(module["GoMod"]).read_text()
    staging = re.findall(r"(\S+) => \./staging/", published)
    replacements = [f"replace {name} => {name} v0.{release.version[3:]}" for name in staging]
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS]
    requirements = [f"require k8s.io/kubernetes {release.version}"]
    for guest in versions.with_kubernetes() if release == versions.kubernetes(None) else ():
        _pinned(f"{guest.module}@{guest.version}", guest.sum)
        requirements.append(f"require {guest.module} {guest.version}")
        if guest.main:
            (work / guest.name).mkdir(exist_ok=True)
            (work / guest.name / "main.go").write_text(guest.main)
        else:
            packages.append(_package(guest))
    imports = [f'_ "{package}"' for package in packages]
    go_mod = ["module testbed", f"go {versions.go()}", *requirements, *replacements]
    source = ["//go:build tools", "package testbed", "import (", *imports, ")"]
    (work / "go.mod").write_text("\n".join(go_mod) + "\n")
    (work / "source.go").write_text("\n".join(source) + "\n")
    shell.logged(cache.folder("log") / "build.log", [*go(), "-C", work, "mod", "tidy"], _env())
    return work


def _package(wanted: Program) -> str:
    """Import path of the main package of a program built with Kubernetes."""
    return f"testbed/{wanted.name}" if wanted.main else f"{wanted.module}/{wanted.package[2:]}"


def _stamp(release: Kubernetes) -> list[str]:
    variables = {
        "k8s.io/component-base/version.gitVersion": release.version,
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": release.minor,
        "k8s.io/client-go/pkg/version.gitVersion": release.version,
    }
    return [f"-X {name}={value}" for name, value in variables.items()]


def _build(
    path: Path, work: Path, package: str, flags: list[str], say: shell.Say, *, cgo: bool = False
) -> None:
    started = time.monotonic()
    linker = " ".join(["-s", "-w", *flags])
    new = path.with_name(path.name + ".new")
    # what the linker would leave out is not made: a tenth of the time
    flags_of_all = ["-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", linker]
    command = [*go(), "build", "-C", work, *flags_of_all, "-o", new, package]
    shell.logged(cache.folder("log") / "build.log", command, _env(cgo=cgo))
    new.replace(path)
    cache.seal(path)
    say(f"built {path.name} ({path.parent.name}) in {time.monotonic() - started:.0f} s")


def _pinned(module: str, sum_: str) -> dict[str, str]:
    """Raises `Failure` for another content than versions.toml has the hash of."""
    fields = _download(module)
    if fields["Sum"] != sum_:
        raise Failure(f"{module} has the hash {fields['Sum']}, not {sum_} as in versions.toml")
    return fields


def _download(module: str) -> dict[str, str]:
    fields: dict[str, str] = json.loads(
        shell.text(*go(), "mod", "download", "-json", module, timeout_s=1800)
    )
    return fields


def _env(*, cgo: bool = False) -> dict[str, str]:
    settings = {"CGO_ENABLED": str(int(cgo)), "GOFLAGS": "-buildvcs=false", "GOGC": "400"}
    return {**os.environ, **settings}  # a compiler with memory to spare need not collect so often


def go() -> list[str | Path]:
    """The machine's Go where it is new enough or fetches a newer one by itself, else a fetched one.

    Debian 12's Go 1.19 is too old, and too old to fetch another by itself. But a Go release is a
    module as well, only that a module cannot carry the mode of its files.
    """
    found = shutil.which("go")
    if found is None:
        raise Failure("Go is not installed: run tools/setup cluster, or install it from go.dev")
    have = _version(shell.text(found, "env", "GOVERSION"))
    if have >= (1, 21):  # from here on Go follows the go line of go.mod by itself
        return [found]
    machine = shell.text(found, "env", "GOOS", "GOARCH").split()
    module = f"golang.org/toolchain@v0.0.1-go{versions.go()}.{'-'.join(machine)}"
    home = Path(json.loads(shell.text(found, "mod", "download", "-json", module))["Dir"])
    for folder in (home / "bin", *home.glob("pkg/tool/*")):
        for file in folder.iterdir():
            file.chmod(0o755)
    return [home / "bin/go"]


def _version(text: str) -> tuple[int, ...]:
    """The numbers of a version such as go1.26.0; () where there are none."""
    found = re.match(r"go(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()
