"""Kernels of other distributions' suites, unpacked into .vm/ without touching the host's packages.

`python -m tests.vm.kernels [NAME...]` fetches and prepares them (without names the default one).
apt works with a state of its own: neither the host's package lists nor its packages change.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.vm import initramfs

ROOT = Path(__file__).resolve().parents[2]
STORE = (ROOT / ".vm").resolve()
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Missing(Exception):
    """A kernel cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One supported kernel and where Debian keeps it."""

    name: str
    suite: str
    package: str = "linux-image-amd64"
    headers: str = "linux-headers-amd64"
    component: str = "main"


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
        stub = _stub(kernel, version, folder)
        return Prepared(kernel, version, folder / "vmlinux", initrd, modules, stub)


@contextmanager
def locked(what: str = "kernels") -> Iterator[None]:
    """One at a time: tests of several kernels share the store."""
    STORE.mkdir(exist_ok=True)
    with (STORE / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(*command: str, cwd: Path | None = None, what: str = "") -> str:
    """What a command printed; raises `Missing` with its last words when it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600
        )
    except OSError as error:
        raise Missing(f"{what or command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Missing(f"{what or command[0]}: {' | '.join(last)}")
    return done.stdout


def _apt(kernel: Kernel, tool: str, *arguments: str, cwd: Path | None = None) -> str:
    state = STORE / "apt" / f"{kernel.suite}-{kernel.component}"
    if not (state / "sources.list").exists():
        for part in ("lists/partial", "cache/archives/partial", "preferences"):
            (state / part).mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        security = kernel.suite.endswith("-security")
        uris = run("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
        mirror = next((u for u in uris if u.rstrip("/").endswith("security") == security), None)
        if mirror is None:
            raise Missing("apt knows no Debian mirror")
        source = (
            f"deb [arch=amd64 signed-by={_KEYRING}] {mirror} {kernel.suite} {kernel.component}\n"
        )
        (state / "sources.list").write_text(source)
    options = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/nonexistent",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": state / "preferences",
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::State::status": state / "status",
        "APT::Sandbox::User": "root",
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if not any((state / "lists").glob("*Packages*")):
        run("apt-get", *words, "update", what=f"no package list of {kernel.suite}")
    return run(tool, *words, *arguments, cwd=cwd, what=f"{kernel.suite}: {arguments[-1]}")


def _depends(kernel: Kernel, package: str) -> list[str]:
    said = _apt(kernel, "apt-cache", "depends", package)
    return re.findall(r"^ *Depends: (linux-[^ <\n]+)", said, re.MULTILINE)


def _version(kernel: Kernel) -> str:
    """The version that is there already, or else the one the suite offers now."""
    known = STORE / f"version-{kernel.name}"
    if not known.exists():
        found = _apt(kernel, "apt-cache", "search", "--names-only", f"^{kernel.package}")
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


def unpack(kernel: Kernel, packages: list[str], target: Path) -> None:
    """Fetch packages of a suite and lay out their files below `target`; nothing is installed."""
    debs = target.with_suffix(".debs")
    debs.mkdir(parents=True)
    _apt(kernel, "apt-get", "-q", "download", *packages, cwd=debs)
    for deb in debs.glob("*.deb"):
        run("dpkg-deb", "-x", str(deb), str(target))
    shutil.rmtree(debs)


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


# gcc 12 knows one flag of kernels that were built with a newer one by another name
_COMPILER = """#!/bin/sh
for word; do
	shift
	case $word in
	-fmin-function-alignment=*) word=-falign-functions=${word#*=} ;;
	esac
	set -- "$@" "$word"
done
exec gcc "$@"
"""


def headers_of(version: str) -> Path:
    """Where modules for a fetched kernel are built; absent where its headers cannot be had."""
    return STORE / version / "headers" / "usr" / "src" / f"linux-headers-{version}"


def _stub(kernel: Kernel, version: str, folder: Path) -> Path | None:
    build, source = folder / "stub", Path(__file__).with_name("stub")
    module = build / "nvidia.ko"
    newest = max(file.stat().st_mtime for file in source.iterdir())
    if module.exists() and module.stat().st_mtime >= newest:
        return module
    tree = headers_of(version)
    if not tree.exists():
        return None
    # the package includes its common part by an absolute path
    makefile = tree / "Makefile"
    text = makefile.read_text()
    makefile.write_text(re.sub(r"(?<=[\s=])/\S*/?usr/src/", f"{tree.parent}/", text))
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(source, build)
    compiler = build / "compiler"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    words = ("make", "-s", "-C", str(tree), f"M={build}", f"CC={compiler}", "modules")
    try:
        run(*words, what="stub driver")
    except Missing as reason:
        (folder / "no-stub").write_text(str(reason))
        return None
    return module


def main() -> int:
    """Fetch the named kernels; those that cannot be had are said and make the result 1."""
    wanted = sys.argv[1:] or [DEFAULT.name]
    failed = 0
    for kernel in KERNELS:
        if kernel.name not in wanted:
            continue
        try:
            ready = prepared(kernel)
            stub = "with" if ready.stub else "without"
            print(f"{kernel.name}: {ready.version} {stub} stub driver")
        except Missing as reason:
            failed = 1
            print(f"{kernel.name}: {reason}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
