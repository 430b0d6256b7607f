"""Kernels of other distributions' suites, unpacked into .vm/.

`python -m tests.vm.kernels [NAME...]` fetches and prepares them (without names the default one).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.machines.images import unpacked
from testbed.machines.packages import (
    STORE,
    Kernel,
    Missing,
    apt,
    each,
    locked,
    run,
    unpack,
    unpack_system,
)
from tests.vm import initramfs, stub_driver

BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")
DEFAULT = Kernel("6.1", "bookworm-security")
KERNELS = (
    Kernel("5.10", "bullseye-security"),
    DEFAULT,
    Kernel("6.12", "bookworm-security", "linux-image-6.12", "linux-headers-6.12"),
    Kernel("newest", "trixie-backports"),
)
ARM64 = Kernel("6.1-arm64", "bookworm-security", "linux-image-arm64", arch="arm64")
"""Emulated whole: its programs come from packages, and the checkout is mounted into them."""
_USERLAND = (
    *("python3", "libbpf1", "busybox-static", "dash", "coreutils", "grep", "findutils"),
    *("procps", "kmod", "iproute2", "util-linux", "pciutils", "mount", "nftables", "bpftool"),
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel that can boot: files below .vm/."""

    kernel: Kernel
    version: str
    vmlinux: Path
    initrd: Path
    modules: Path
    """The folder that holds VERSION/, to be mounted on /lib/modules."""
    stub: Path | None
    """The stub driver built for it; None where its headers or compiler cannot be had."""
    why_no_stub: str = ""
    root: Path = Path("/")
    """What the guest sees as its root: the host's own, or the programs of another architecture."""


def prepared(kernel: Kernel = DEFAULT) -> Prepared:
    """Fetch, unpack and build what is missing; raises `Missing` with the reason."""
    with locked():
        version = _version(kernel)
        folder = STORE / version
        if not (folder / "complete").exists():
            _fetch(kernel, version, folder)
        modules = _one(folder.glob("image/**/lib/modules"), "modules")
        initrd = folder / "initrd"
        root = Path("/") if kernel.arch == DEFAULT.arch else _userland(kernel)
        agent = Path(__file__).with_name("agent.py")
        initramfs.build(initrd, modules / version, BOOT_MODULES, agent, root / "bin/busybox")
        ready = Prepared(kernel, version, folder / "vmlinux", initrd, modules, None, root=root)
        try:
            return replace(ready, stub=stub_driver.built(kernel, version))
        except Missing as reason:
            return replace(ready, why_no_stub=str(reason))


def _userland(kernel: Kernel) -> Path:
    """Programs of the kernel's architecture, below .vm/; raises `Missing`."""
    root = STORE / f"root-{kernel.arch}"
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        for folder in (
            "proc",
            "sys",
            "dev",
            "run",
            "tmp",
            "root",
            "lib/modules",
            "usr/bin",
            "var/tmp",
        ):
            (root / folder).mkdir(parents=True, exist_ok=True)
        suite = kernel.suite.removesuffix("-security")
        unpack_system(replace(kernel, suite=suite), _USERLAND, root)
        for name, target in (("sh", "dash"), ("awk", "busybox")):
            (root / "bin" / name).unlink(missing_ok=True)
            (root / "bin" / name).symlink_to(target)
        (root / "complete").touch()
    return root


def _depends(kernel: Kernel, package: str) -> list[str]:
    said = apt(kernel, "apt-cache", "depends", package)
    return re.findall(r"^ *Depends: (linux-[^ <\n]+)", said, re.MULTILINE)


def known_version(kernel: Kernel) -> str:
    """The version that was fetched; empty before."""
    known = _known(kernel)
    return known.read_text() if known.exists() else ""


def _known(kernel: Kernel) -> Path:
    return STORE / f"version-{kernel.name}"


def _version(kernel: Kernel) -> str:
    """The version that is there already, or else the one the suite offers now."""
    known = _known(kernel)
    if not known.exists():
        found = apt(kernel, "apt-cache", "search", "--names-only", f"^{kernel.package}")
        names = {line.split()[0] for line in found.splitlines()}
        if kernel.package in names:
            image = next(
                (n for n in _depends(kernel, kernel.package) if n.startswith("linux-image-")), ""
            )
        else:  # no such meta package: the highest image whose name begins so
            fit = [
                n
                for n in names
                if re.fullmatch(re.escape(kernel.package) + rf"[\d.]*\S*-{kernel.arch}", n)
            ]
            plain = [n for n in fit if not re.search(r"-(?:rt|cloud)-", n)]
            image = max(plain, key=_order, default="")
        if not image:
            raise Missing(f"{kernel.suite} has no {kernel.package}")
        known.write_text(image.removeprefix("linux-image-"))
    return known.read_text()


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))


def _fetch(kernel: Kernel, version: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    image, headers = folder / "image", folder / "headers"
    parts = [p for p in _depends(kernel, f"linux-image-{version}") if version in p]
    unpack(kernel, [f"linux-image-{version}", *parts], image)
    modules = _one(image.glob("**/lib/modules"), "modules")
    run("/sbin/depmod", "-b", str(modules.parents[1]), version)
    # QEMU starts it as it is: under emulation to decompress it takes longer than the rest
    plain = unpacked(_one(image.glob("**/vmlinuz*"), "kernel image").read_bytes())
    (folder / "vmlinux").write_bytes(plain)
    if kernel.arch != DEFAULT.arch:
        (folder / "no-headers").write_text(f"modules for {kernel.arch} are not built here")
        (folder / "complete").touch()
        return
    try:
        name = f"linux-headers-{version}"
        needed = [
            p for p in _depends(kernel, name) if p.startswith(("linux-headers", "linux-kbuild"))
        ]
        unpack(kernel, [name, *needed], headers)
    except Missing as reason:
        (folder / "no-headers").write_text(str(reason))
    (folder / "complete").touch()


def _one(found: Iterator[Path], what: str) -> Path:
    path = next(found, None)
    if path is None:
        raise Missing(f"the package holds no {what}")
    return path


def main() -> int:
    """Fetch the named kernels; the exit code."""
    wanted = sys.argv[1:] or [DEFAULT.name]
    return each((kernel for kernel in (*KERNELS, ARM64) if kernel.name in wanted), _readiness)


def _readiness(kernel: Kernel) -> str:
    ready = prepared(kernel)
    stub = f"without stub driver: {ready.why_no_stub}" if ready.why_no_stub else "ready"
    return f"{ready.version} {stub}"


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
