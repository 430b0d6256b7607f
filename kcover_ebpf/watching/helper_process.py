"""A program beside ours that reads what a job wrote: in little memory, with few privileges, and gone when we are.

Such programs parse files and memory of the job, which may be made to harm the parser. They die with the thread that
started them (PR_SET_PDEATHSIG), gain no privileges, and do not keep CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import partial

from kcover_ebpf.kernel import capabilities
from kcover_ebpf.kernel.capabilities import Capability

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_LIBC = ctypes.CDLL(None)
_SHOWN = 160
"""Of what a program said last: the end is the error."""


def start(
    command: Sequence[str],
    data_bytes: int,
    stdin: int = subprocess.DEVNULL,
    *,
    keep_admin: bool = False,
) -> subprocess.Popen[bytes] | None:
    """None where it did not start; `data_bytes`: RLIMIT_DATA, which counts what is written to.

    `keep_admin`: it gives CAP_SYS_ADMIN up itself, once it has read what needs it.
    """
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=partial(_confine, data_bytes, keep_admin),  # noqa: PLW1509 - some system calls, and no lock
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _confine(data_bytes: int, keep_admin: bool) -> None:
    # without new privileges, because gaining any would take the death signal back (kernel: commit_creds)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    if not keep_admin:
        capabilities.renounce(Capability.SYS_ADMIN)


def output(process: subprocess.Popen[bytes], end_s: float) -> tuple[bytes, str]:
    """(what it wrote, why that may be too little); killed at `end_s` (CLOCK_MONOTONIC)."""
    try:
        out, said = process.communicate(timeout=max(0.05, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return out, "no time was left"
    return out, " ".join(said.decode("utf-8", "replace").split())[-_SHOWN:]


def close(process: subprocess.Popen[bytes]) -> None:
    """End it, if it still runs."""
    if process.poll() is None:
        process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()
