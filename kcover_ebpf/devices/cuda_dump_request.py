"""Asks the CUDA driver of a process for a GPU core dump, through the pipe that the process configured for it.

Any byte written to the pipe triggers the dump. A process is asked only if its environment says that it continues
afterwards and that the dump leaves out memory. Source: NVIDIA's manual of cuda-gdb, "GPU Core Dump Support".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.cuda_dump import CudaDumpError, kernels_of
from kcover_ebpf.host import bounded, procfs, rank_files
from kcover_ebpf.host.rank_files import RankFileError
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.traced import GpuKernel

_PIPE, _FILE = "CUDA_COREDUMP_PIPE", "CUDA_COREDUMP_FILE"
_ENABLED, _FLAGS = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "CUDA_COREDUMP_GENERATION_FLAGS"
_VARIABLES = frozenset({_PIPE, _FILE, _ENABLED, _FLAGS, "HOSTNAME"})
_WANTED = frozenset({"skip_abort", "skip_global_memory", "skip_shared_memory", "skip_local_memory"})
Mark = rank_files.FileIdentity
"""Identity of one version of a file, to detect that it was rewritten; None if the file does not exist."""


@dataclass(frozen=True, slots=True)
class DumpPlace:
    """Pipe of one process, and the file that its driver writes."""

    pid: Pid
    pipe: str
    file: str


def place_of(pid: Pid) -> DumpPlace | None:
    """Pipe and file of a process; None if it has no such pipe. Raises `CudaDumpError` if it must not be asked."""
    raw = bounded.read_bytes(procfs.PROC / str(pid) / "environ")
    environ = procfs.parse_environ(raw, _VARIABLES)
    if not environ.get(_PIPE):
        return None
    if environ.get(_ENABLED) != "1":
        raise CudaDumpError(f"{_ENABLED} is not 1: its driver does not listen")
    missing = sorted(_WANTED - set(environ.get(_FLAGS, "").replace(" ", "").split(",")))
    if missing:
        raise CudaDumpError(f"{_FLAGS} lacks {', '.join(missing)}")
    if not environ.get(_FILE) or "%t" in environ[_FILE]:
        raise CudaDumpError(
            f"{_FILE} is not set, or contains a time stamp: the path of the dump is unknown"
        )
    numbers = procfs.namespace_numbers(pid)
    inner = numbers[-1] if numbers else pid
    return DumpPlace(
        pid, _filled(environ[_PIPE], inner, environ), _filled(environ[_FILE], inner, environ)
    )


def _filled(pattern: str, pid: int, environ: Mapping[str, str]) -> str:
    return pattern.replace("%p", str(pid)).replace("%h", environ.get("HOSTNAME", "%h"))


def request(place: DumpPlace) -> Mark:
    """Ask for a dump; returns the mark of the previous file. Raises `CudaDumpError`."""
    try:
        before = mark(place)
        pipe = rank_files.opened(place.pid, place.pipe, os.O_WRONLY, pipe=True)
        try:
            os.write(pipe, b"1")
        finally:
            os.close(pipe)
    except RankFileError as error:
        raise CudaDumpError(str(error)) from None
    except OSError as error:
        no_reader = error.errno == errno.ENXIO
        why = f"no process reads {place.pipe}" if no_reader else f"{place.pipe}: {error.strerror}"
        raise CudaDumpError(why) from None
    return before


def mark(place: DumpPlace) -> Mark:
    """Mark of the current file; raises `OSError`."""
    return rank_files.identity_of(place.pid, place.file)


def fetch(place: DumpPlace) -> tuple[GpuKernel, ...]:
    """The kernels in the dump file; raises `CudaDumpError`, also while the file is still being written."""
    try:
        file = rank_files.opened(place.pid, place.file, os.O_RDONLY, pipe=False)
    except RankFileError as error:
        raise CudaDumpError(str(error)) from None
    except OSError as error:
        raise CudaDumpError(f"{place.file}: {error.strerror}") from None
    try:
        return kernels_of(lambda offset, size: os.pread(file, size, offset))
    except (OSError, OverflowError) as error:
        raise CudaDumpError(f"{place.file}: {error}") from None
    finally:
        os.close(file)
