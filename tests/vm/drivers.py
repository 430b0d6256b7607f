"""Real GPU drivers, built from Debian's packages into .vm/drivers: for their symbol tables only.

The packages hold the interface layer as source and the rest compiled. They are never loaded: there
is no GPU, and what a sensor names must exist whether or not there is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.machines.packages import STORE, Kernel, Missing, each, locked, run, unpack
from tests.vm.kernels import DEFAULT, prepared
from tests.vm.stub_driver import headers_of

DRIVERS = (
    Kernel("open-535", "bookworm", "nvidia-open-kernel-dkms", component="contrib"),
    Kernel("open-550", "trixie", "nvidia-open-kernel-dkms", component="contrib"),
    Kernel("proprietary-550", "trixie", "nvidia-kernel-dkms", component="non-free"),
)
MODULES = ("nvidia", "nvidia-uvm")
# stable kernels of 2026 gave this function a fourth argument (exclude_bars); the packages are older
_RESIZE = re.compile(r"(pci_resize_resource\(pci_dev, NV_GPU_BAR1, requested_size)\)")


def symbols(driver: Kernel) -> dict[str, str]:
    """Name -> type (as nm writes it) of all symbols of both modules; raises `Missing`."""
    folder = built(driver)
    found: dict[str, str] = {}
    for module in MODULES:
        for line in run("nm", str(folder / f"{module}.ko")).splitlines():
            *_, kind, name = line.split()
            found[name] = kind
    return found


def built(driver: Kernel) -> Path:
    """The folder of the driver's modules, fetched and built where needed; raises `Missing`."""
    kernel = prepared(DEFAULT)
    folder = STORE / "drivers" / driver.name
    with locked("drivers"):
        if not all((folder / f"{module}.ko").exists() for module in MODULES):
            if not (folder / "unpacked").exists():
                shutil.rmtree(folder, ignore_errors=True)
                unpack(driver, [driver.package], folder / "package")
                (folder / "unpacked").touch()
            _build(folder, kernel.version)  # continues where it was broken off
    return folder


def _build(folder: Path, version: str) -> None:
    (source,) = (folder / "package/usr/src").iterdir()
    calls = source / "nvidia/nv-pci.c"
    calls.write_text(_RESIZE.sub(r"\1, 0)", calls.read_text()))
    tree = headers_of(version)
    common = tree.with_name(tree.name.replace("-amd64", "-common"))
    words = (f"SYSSRC={common}", f"SYSOUT={tree}", "IGNORE_CC_MISMATCH=1", "CC=gcc")
    wanted = f"NV_KERNEL_MODULES={' '.join(MODULES)}"
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            ("nice", "make", "-s", "-C", str(source), *words, wanted, "modules"),
            stdout=log,
            stderr=log,
            check=False,
            timeout=3600,
        )
    if done.returncode:
        raise Missing(f"the driver does not build: see {folder / 'log'}")
    for module in MODULES:
        shutil.copy(source / f"{module}.ko", folder)
    shutil.rmtree(folder / "package")


def main() -> int:
    """Build all; the exit code."""
    return each(DRIVERS, lambda driver: f"{len(symbols(driver))} symbols")


if __name__ == "__main__":
    sys.exit(main())
