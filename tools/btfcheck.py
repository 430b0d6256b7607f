"""Whether the BPF objects fit kernels that are not booted here, those of arm64 above all.

    python -m tools.btfcheck [NAME...]      names: 5.10-amd64, 6.12-arm64, ...

Kernel packages of Debian are fetched (some 70 MB each, once) and their type information is taken out.
Then libbpf searches every field that an object reads, as it does when it loads. A field that a kernel
lacks is right only where the program asks for it first (bpf_core_field_exists and its like), or where
it is the name of another kernel's field (a type with "___" in its name).
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.machines.images import unpacked
from testbed.machines.packages import STORE, Kernel, Missing, apt, locked, run

ROOT = Path(__file__).resolve().parents[1]
OBJECTS = ROOT / "kcover_ebpf" / "objects"
_FOLDERS = {"amd64": "x86_64", "arm64": "arm64"}
# the last point release of 5.10: the security archive lists its arm64 packages but does not contain
# them
_SUITES = (
    ("5.10", "bullseye", r"linux-image-5\.10\.0-\d+"),
    ("6.1", "bookworm-security", r"linux-image-6\.1\.0-\d+"),
    ("6.12", "bookworm-security", r"linux-image-6\.12\.[\w.+]+"),
    ("newest", "trixie-backports", r"linux-image-[\w.+]+"),
)
KERNELS = tuple(
    Kernel(f"{name}-{arch}", suite, rf"{package}-{arch}", arch=arch)
    for arch in _FOLDERS
    for name, suite, package in _SUITES
)
# layout.bpf.o and device_layout.bpf.o contain types for the tests, and no program
_NO_PROGRAMS = frozenset({"layout.bpf.o", "device_layout.bpf.o"})

# include/uapi/linux/btf.h: magic, version 1, no flags, a header of 24 bytes
_BTF_HEAD = b"\x9f\xeb\x01\x00\x18\x00\x00\x00"
_LEAST_BTF_BYTES = 1_000_000
_RELOCATION = r"prog '([^']*)': relo #(\d+): "
_ASKED = re.compile(_RELOCATION + r"<(\w+)> \[\d+\] (?:struct|union|enum|typedef) (\S+)")
_ABSENT = re.compile(_RELOCATION + "no matching targets found")
_TYPED = "tp_btf/"


def btf_of(image: bytes) -> bytes:
    """The type information in a kernel image; raises `Missing` if there is none."""
    start = image.find(_BTF_HEAD)
    while start >= 0:
        type_at, type_bytes, text_at, text_bytes = struct.unpack_from("<4I", image, start + 8)
        if type_at == 0 and type_bytes == text_at and type_bytes > _LEAST_BTF_BYTES:
            return image[start : start + 24 + text_at + text_bytes]
        start = image.find(_BTF_HEAD, start + 1)
    raise Missing("the kernel image holds no type information")


def unguarded(log: str, btf: bytes) -> set[str]:
    """Fields that a program reads without a guard and that the kernel lacks, from libbpf's debug log.

    A program whose tracepoint the kernel lacks is not loaded.
    """
    asked: dict[tuple[str, str], tuple[str, str]] = {}
    absent: set[tuple[str, str]] = set()
    for line in log.splitlines():
        if found := _ASKED.search(line):
            asked[found[1], found[2]] = found[3], found[4]
        elif (found := _ABSENT.search(line)) and _is_loaded(found[1], btf):
            absent.add(asked[found[1], found[2]])
    guarded = {what for kind, what in absent if kind.endswith("_exists")}
    read = {what for kind, what in absent if not kind.endswith("_exists")}
    return {what for what in read - guarded if "___" not in what}


def _is_loaded(section: str, btf: bytes) -> bool:
    if not section.startswith(_TYPED):
        return True
    return f"\0btf_trace_{section.removeprefix(_TYPED)}\0".encode() in btf


def fetched(kernel: Kernel) -> Path:
    """File with the type information of a kernel; raises `Missing` with the reason."""
    with locked("btf"):
        target = STORE / "btf" / f"{kernel.name}.btf"
        if target.exists():
            return target
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            apt(kernel, "apt-get", "-q", "download", *_packages(kernel), cwd=Path(folder))
            for deb in list(Path(folder).glob("*.deb")):
                run("dpkg-deb", "-x", str(deb), folder)
            image = next(Path(folder).glob("**/vmlinuz*"), None)
            if image is None:
                raise Missing("the packages hold no kernel image")
            target.write_bytes(btf_of(unpacked(image.read_bytes())))
        return target


def _packages(kernel: Kernel) -> list[str]:
    """Packages of the newest kernel of a suite; in newer suites the image is in a package that it depends on."""
    listed = apt(kernel, "apt-cache", "search", "--names-only", "^linux-image-")
    names = [line.split()[0] for line in listed.splitlines()]
    fit = [name for name in names if re.fullmatch(f"{kernel.package}(-unsigned)?", name)]
    plain = [name for name in fit if not re.search("-(rt|cloud|16k)-", name)]
    if not plain:
        raise Missing(f"{kernel.suite} has no {kernel.package}")
    newest = max(plain, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    depends = apt(kernel, "apt-cache", "depends", newest)
    version = newest.removeprefix("linux-image-").removesuffix("-unsigned")
    parts = re.findall(r"^ *Depends: (linux-[^ <\n]+)", depends, re.MULTILINE)
    return [newest, *(part for part in parts if version in part and "modules" not in part)]


def check(kernel: Kernel) -> list[str]:
    """A line for each thing that does not fit; raises `Missing` if the kernel cannot be obtained."""
    btf = fetched(kernel)
    types = btf.read_bytes()
    said = []
    for path in sorted((OBJECTS / _FOLDERS[kernel.arch]).glob("*.bpf.o")):
        if path.name in _NO_PROGRAMS:
            continue
        with tempfile.NamedTemporaryFile() as small:
            command = ("bpftool", "-d", "gen", "min_core_btf", str(btf), small.name, str(path))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said.append(f"{path.name}: {done.stderr.strip().splitlines()[-1]}")
        said += [f"{path.name}: {what} is not there" for what in unguarded(done.stderr, types)]
    return sorted(said)


def main() -> int:
    """Check the named kernels, or all; 1 if something does not fit or a kernel cannot be obtained."""
    wanted = sys.argv[1:] or [kernel.name for kernel in KERNELS]
    failed = 0
    for kernel in KERNELS:
        if kernel.name not in wanted:
            continue
        try:
            said = check(kernel)
        except Missing as reason:
            said = [str(reason)]
        failed |= bool(said)
        print("\n".join(f"{kernel.name}: {line}" for line in said or ["all objects fit"]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
