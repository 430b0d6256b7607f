"""Kernels of other distributions' suites, unpacked into .vm/.

`python -m tests.vm.kernels [NAME...]` fetches and prepares them (without names the default one).
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.vm import initramfs, standin
from tests.vm.packages import STORE, Kernel, Missing, apt, each, locked, run, unpack

BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")
DEFAULT = Kernel("6.1", "bookworm-security")
KERNELS = (
    Kernel("5.10", "bullseye-security"),
    DEFAULT,
    Kernel("6.12", "bookworm-security", "linux-image-6.12", "linux-headers-6.12"),
    Kernel("newest", "trixie-backports"),
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
    """The stand-in driver built for it; None where its headers or compiler cannot be had."""
    why_no_stub: str = ""


def prepared(kernel: Kernel = DEFAULT) -> Prepared:
    """Fetch, unpack and build what is missing; raises `Missing` with the reason."""
    with locked():
        version = _version(kernel)
        folder = STORE / version
        if not (folder / "complete").exists():
            _fetch(kernel, version, folder)
        modules = _one(folder.glob("image/**/lib/modules"), "modules")
        initrd = folder / "initrd"
        initramfs.build(
            initrd, modules / version, BOOT_MODULES, Path(__file__).with_name("agent.py")
        )
        ready = Prepared(kernel, version, folder / "vmlinux", initrd, modules, None)
        try:
            return replace(ready, stub=standin.built(kernel, version))
        except Missing as reason:
            return replace(ready, why_no_stub=str(reason))


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
                n for n in names if re.fullmatch(re.escape(kernel.package) + r"[\d.]*\S*-amd64", n)
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
    _unpack_vmlinux(_one(image.glob("**/vmlinuz*"), "kernel image"), folder / "vmlinux")
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


def _unpack_vmlinux(bzimage: Path, target: Path) -> None:
    """The ELF kernel inside a bzImage (Documentation/x86/boot.rst): QEMU starts it directly by PVH.

    The guest then need not decompress it under emulation, which takes longer than the rest.
    """
    data = bzimage.read_bytes()
    setup_sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    payload = data[(setup_sectors + 1) * 512 + offset :][:length]
    if payload.startswith(b"\xfd7zXZ\0"):
        elf = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        elf = zlib.decompressobj(31).decompress(payload)
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        # four bytes with the size trail the frame: zstd complains about them and is right otherwise
        zstd = subprocess.run(
            ("zstd", "-dcq"), input=payload, capture_output=True, check=False, timeout=60
        )
        elf = zstd.stdout
    else:
        raise Missing(f"unknown compression of {bzimage.name}: {payload[:6]!r}")
    if not elf.startswith(b"\x7fELF"):
        raise Missing(f"{bzimage.name} holds no ELF kernel")
    target.write_bytes(elf)


def main() -> int:
    """Fetch the named kernels; the exit code."""
    wanted = sys.argv[1:] or [DEFAULT.name]
    return each((kernel for kernel in KERNELS if kernel.name in wanted), _readiness)


def _readiness(kernel: Kernel) -> str:
    ready = prepared(kernel)
    stub = f"without stub driver: {ready.why_no_stub}" if ready.why_no_stub else "ready"
    return f"{ready.version} {stub}"


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
