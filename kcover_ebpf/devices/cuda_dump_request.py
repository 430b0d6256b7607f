"""Asks the CUDA driver of a process for a core dump of its GPUs, by the pipe that the process chose for that.

Any byte in the pipe makes the driver write the dump. Only a process whose environment says that it then continues, and
that the dump holds no memory, is asked. Source: NVIDIA's manual of cuda-gdb, "GPU Core Dump Support".
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
"""What distinguishes one version of a file from the next; None while there is none."""


@dataclass(frozen=True, slots=True)
class DumpPlace:
    """Where one process listens, and where its driver writes."""

    pid: Pid
    pipe: str
    file: str


def place_of(pid: Pid) -> DumpPlace | None:
    """None for a process that has no such pipe; raises `CudaDumpError` for one that must not be asked."""
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
        raise CudaDumpError(f"{_FILE} is not set, or has a time in it: where it writes is unknown")
    numbers = procfs.namespace_numbers(pid)
    inner = numbers[-1] if numbers else pid
    return DumpPlace(
        pid, _filled(environ[_PIPE], inner, environ), _filled(environ[_FILE], inner, environ)
    )


def _filled(pattern: str, pid: int, environ: Mapping[str, str]) -> str:
    return pattern.replace("%p", str(pid)).replace("%h", environ.get("HOSTNAME", "%h"))


def request(place: DumpPlace) -> Mark:
    """Ask; the mark of the file that was there before. Raises `CudaDumpError`."""
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
    """Of the file as it is; raises `OSError`."""
    return rank_files.identity_of(place.pid, place.file)


def fetch(place: DumpPlace) -> tuple[GpuKernel, ...]:
    """What the file says; raises `CudaDumpError`, also while it is being written."""
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
