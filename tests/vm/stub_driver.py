"""Builds the stub driver (stub/) against the headers of a fetched kernel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from testbed.machines.packages import STORE, Kernel, Missing, run, unpack

_SOURCE = Path(__file__).with_name("stub")
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
_LIBRARIES = ("libc6", "libelf1t64", "zlib1g", "libzstd1")


def headers_of(version: str) -> Path:
    """Where modules for a fetched kernel are built; absent where its headers cannot be had."""
    return STORE / version / "headers" / "usr" / "src" / f"linux-headers-{version}"


def built(kernel: Kernel, version: str) -> Path:
    """The module, made anew when its source is newer; raises `Missing`."""
    folder = STORE / version
    build = folder / "stub"
    module = build / "nvidia.ko"
    newest = max(file.stat().st_mtime for file in _SOURCE.iterdir())
    if module.exists() and module.stat().st_mtime >= newest:
        return module
    tree = headers_of(version)
    if not tree.exists():
        raise Missing((folder / "no-headers").read_text())
    # the package includes its common part by an absolute path
    makefile = tree / "Makefile"
    text = makefile.read_text()
    makefile.write_text(re.sub(r"(?<=[\s=])/\S*/?usr/src/", f"{tree.parent}/", text))
    _make_runnable(kernel, folder / "headers")
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(_SOURCE, build)
    compiler = build / "compiler"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    words = ("make", "-s", "-C", str(tree), f"M={build}", f"CC={compiler}")
    # types are not looked up in it, and the host's pahole may be too old to write them
    run(*words, "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules", what="stub driver")
    return module


def _make_runnable(kernel: Kernel, headers: Path) -> None:
    """The package's own tools may want a newer C library than the host's: give them their suite's."""
    tools = [tool for tool in headers.glob("usr/lib/linux-kbuild-*/**/*") if _is_too_new(tool)]
    if not tools:
        return
    libraries = headers / "libraries"
    if not libraries.exists():
        suite = kernel.suite.removesuffix("-backports")
        unpack(replace(kernel, suite=suite), list(_LIBRARIES), libraries)
    loader = next(libraries.glob("**/ld-linux-x86-64.so.2"))
    folder = next(libraries.glob("**/libc.so.6")).parent
    for tool in tools:
        program = tool.rename(tool.with_name(f"{tool.name}.program"))
        tool.write_text(f'#!/bin/sh\nexec {loader} --library-path {folder} {program} "$@"\n')
        tool.chmod(0o755)


def _is_too_new(tool: Path) -> bool:
    """Whether a program of this machine's kind wants a newer C library than the host's.

    What lacks another one is not needed: the old kernels' tools that sign modules.
    """
    if not os.access(tool, os.X_OK) or not tool.is_file() or tool.suffix == ".program":
        return False
    with tool.open("rb") as file:
        if file.read(5) != b"\x7fELF\x02":
            return False
    done = subprocess.run(("ldd", str(tool)), capture_output=True, text=True, check=False)
    return re.search(r"`GLIBC_\S+ not found", done.stdout + done.stderr) is not None
