"""Finds the folder that NCCL Inspector writes to, and reads the end of each file there.

A job that trains for days writes gigabytes; the last part shows what is slow now.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice

from kcover_ebpf.collectives.inspector.records import CollectiveRun, runs
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.host import procfs, rank_files
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.collectives import MOST_FILES, MOST_LISTED, MOST_TAIL_BYTES

_DUMP_DIR, _SLURM_JOB = "NCCL_INSPECTOR_DUMP_DIR", "SLURM_JOBID"
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class InspectorRead:
    """The records in one folder, and what could not be read."""

    runs: tuple[CollectiveRun, ...]
    file_count: int
    bad_count: int
    """Lines without a collective; the last line of a file may be incomplete because it is being written."""
    left_out: int
    """Files skipped because there were more than the limit."""


def opened_by(pid: Pid) -> int:
    """Descriptor of the folder that NCCL Inspector writes to in a process; raises `CannotObserve`."""
    process = procfs.read_process(pid, {_DUMP_DIR, _SLURM_JOB})
    if process is None:
        raise CannotObserve(f"there is no process {pid}, or it may not be read: run this as root")
    environ = process.rank_environ
    job = environ.get(_SLURM_JOB, "")
    path = environ.get(_DUMP_DIR) or f"nccl-inspector-{job if job.isdigit() else 'unknown-jobid'}"
    try:
        return rank_files.opened_folder(pid, path)
    except OSError as error:
        why = error.strerror or error
        raise CannotObserve(
            f"process {pid} has no folder of NCCL Inspector: {path}: {why}"
        ) from None


def read(
    folder: int, most_files: int = MOST_FILES, tail_bytes: int = MOST_TAIL_BYTES
) -> InspectorRead:
    """The records at the ends of the files in a folder, given its descriptor; raises `OSError`."""
    with os.scandir(folder) as entries:
        listed = [entry.name for entry in islice(entries, MOST_LISTED)]
    names = sorted(name for name in listed if not name.startswith("."))
    found: list[CollectiveRun] = []
    file_count = bad_count = 0
    device = os.fstat(folder).st_dev
    for name in names[:most_files]:
        try:
            file = _opened(folder, name, device)
        except OSError:
            continue  # a symbolic link, or deleted meanwhile
        if file is None:
            continue
        try:
            file_count += 1
            for run in runs(_last_lines(file, tail_bytes)):
                if run is None:
                    bad_count += 1
                else:
                    found.append(run)
        finally:
            os.close(file)
    return InspectorRead(tuple(found), file_count, bad_count, max(0, len(names) - most_files))


def _opened(folder: int, name: str, device: int) -> int | None:
    """A regular file of the folder's own file system; of any other only its kind is looked up. Raises `OSError`."""
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode) or status.st_dev != device:
            return None
        return os.open(f"/proc/self/fd/{found}", _FILE)
    finally:
        os.close(found)


def _last_lines(file: int, tail_bytes: int) -> Iterator[bytes]:
    size = os.fstat(file).st_size
    begin = max(0, size - tail_bytes)
    lines = iter(os.pread(file, tail_bytes, begin).splitlines())
    if begin:
        next(lines, None)  # the read began in the middle of this line
    yield from lines
