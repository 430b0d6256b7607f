"""Starts helper processes, limits what they may do and use, and ends them without waiting forever.

Everything that may hang or crash, or that tenants can influence, runs in such a process: readers of logs and of
ranks, py-spy, the reader of GPUs, an inspection and each of its checks, a vendor's scripts. A helper that was killed
but does not end, because it is in a kernel call that does not return (state D), is left behind and counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import IO, NoReturn, Protocol

from kcover_ebpf.confined.seccomp import SyscallFilter
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import capabilities
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.tunables.host import HELPER_REAP_S

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_LIBC = ctypes.CDLL(None, use_errno=True)
_BLOCK_BYTES = 64 << 10
_SHOWN = 160
"""Characters shown of the last line that a program printed; the end contains the error."""
_ERROR_BYTES = 4096
_FILTER = SyscallFilter()
_FILE_BYTES = 0
"""RLIMIT_FSIZE in bytes: no helper writes a file."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """Limits and privileges of a helper."""

    data_bytes: int
    """RLIMIT_DATA, which counts only writable memory: mapping a library of a gigabyte is free."""
    cpu_s: int
    """RLIMIT_CPU: CPU seconds over its whole life."""
    kept: frozenset[Capability] = frozenset()
    """Capabilities that it keeps; it loses all others permanently."""
    address_bytes: int | None = None
    """RLIMIT_AS; None for a program that maps the files that it reads."""
    open_files: int = 256
    filtered: bool = True
    """Refuse system calls that no reader needs (`seccomp`)."""
    group: int | None = field(default=None, compare=False)
    """Descriptor to write to in order to enter the control group that refuses devices; None: there
    is no group."""
    with_parent: bool = True
    """The kernel kills it when the thread that started it ends."""
    out_of_memory_score: int = 1000
    """oom_score_adj, i.e. which process the kernel kills first when memory runs out
    (proc_pid_oom_score_adj(5)); -1000: never. A value below 0 needs CAP_SYS_RESOURCE; without it
    the score stays unchanged."""


class ChildProcess(Protocol):
    """A child of this process: a program (`subprocess.Popen`), or a fork."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        ...

    def wait(self, timeout: float) -> int:
        """Its exit code; raises `subprocess.TimeoutExpired`."""
        ...


class _Fork:
    """A copy of this process, as `subprocess.Popen` shows a program."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = stdout
        self.stderr: IO[bytes] | None = None
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code

    def wait(self, timeout: float) -> int:
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.002)
        return code


class Helper:
    """One running helper. Its streams are descriptors of ours, closed by `end`."""

    def __init__(self, process: ChildProcess, *, is_leader: bool, grace_s: float = 0.0) -> None:
        """`is_leader`: it leads a session, so that its children are ended with it.

        `grace_s`: seconds from SIGTERM to SIGKILL.
        """
        self._process, self._is_leader, self._grace_s = process, is_leader, grace_s
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> int:
        """Descriptor of its input; only if it was started with one."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    @property
    def stdout(self) -> int:
        """Descriptor of its standard output, for reading."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def close_stdin(self) -> None:
        """Close its input, which is how a helper learns that it should end."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def output(
        self, end_s: float, most_bytes: int, stops: Callable[[], bool] = lambda: False
    ) -> tuple[bytes, str]:
        """(output, reason why it is incomplete or empty), once the helper ends.

        The helper is ended at `end_s` (monotonic), beyond `most_bytes`, and when `stops`, called once a second,
        returns True.
        """
        blocks: dict[int, bytearray] = {}
        streams = (self._process.stdout, self._process.stderr)
        poll = select.poll()
        for stream in streams:
            if stream is not None and not stream.closed:
                blocks[stream.fileno()] = bytearray()
                poll.register(stream.fileno(), select.POLLIN)
        out = bytearray() if self._process.stdout is None else blocks[self.stdout]
        said = next((block for block in blocks.values() if block is not out), bytearray())
        waiting, why = set(blocks), ""
        while waiting and not why:
            left_s = end_s - time.monotonic()
            for descriptor, _ in poll.poll(min(max(0.0, left_s), 1.0) * 1000):
                block = os.read(descriptor, _BLOCK_BYTES)
                blocks[descriptor] += block
                if not block:
                    poll.unregister(descriptor)
                    waiting.discard(descriptor)
            del said[:-_ERROR_BYTES]
            if len(out) > most_bytes:
                why = f"it wrote more than {most_bytes} bytes"
            elif waiting and (time.monotonic() >= end_s or stops()):
                why = "no time was left"
        # who has closed its streams is about to end by itself
        if not why and not self.wait(min(end_s, time.monotonic() + HELPER_REAP_S)):
            why = "no time was left"
        self.end()
        return bytes(out[:most_bytes]), why or _shown(bytes(said))

    def wait(self, end_s: float) -> bool:
        """True once it has ended by itself, before `end_s` (monotonic)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, end_s - time.monotonic()))
            return True
        return False

    def last_words(self) -> str:
        """The last line that it wrote to standard error; empty if there is none."""
        stream = self._process.stderr
        if stream is None or stream.closed or not select.select([stream], [], [], 0.2)[0]:
            return ""
        return (
            os.read(stream.fileno(), _ERROR_BYTES)
            .decode(errors="replace")
            .strip()
            .rpartition("\n")[2]
        )

    def end(self, reap_s: float = HELPER_REAP_S) -> bool:
        """Kill it if it still runs. False if it has not ended `reap_s` seconds later; then it is left behind."""
        if self._ended:
            return self._process.poll() is not None
        self._ended = True
        if self._grace_s and self._process.poll() is None:
            self._signal(signal.SIGTERM)
            self.wait(time.monotonic() + self._grace_s)
        self._signal(signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self.wait(time.monotonic() + reap_s):
            return True
        left_behind.add(self._process)
        return False

    def _signal(self, number: signal.Signals) -> None:
        # its group may outlive it, and a fork leads one only after a moment
        if self._is_leader:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
        # its number alone may be another's once it was reaped
        if (not self._is_leader or number is signal.SIGKILL) and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, number)


class HelpersLeftBehind:
    """Helpers that were killed and have not ended; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[ChildProcess] = []
        self.total = 0
        """Helpers ever left behind, including those that ended later."""

    def add(self, process: ChildProcess) -> None:
        """Count a killed process that does not end, and watch for its end."""
        with self._lock:
            self._processes.append(process)
            self.total += 1

    def count(self) -> int:
        """Helpers that have not ended yet."""
        with self._lock:
            self._processes = [process for process in self._processes if process.poll() is None]
            return len(self._processes)


left_behind = HelpersLeftBehind()
"""All helpers that this process has left behind."""


def start(  # noqa: PLR0913 - the streams and the surroundings of a program
    command: Sequence[str],
    confinement: Confinement | None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    passed: Sequence[int] = (),
    session: bool = False,
    grace_s: float = 0.0,
    niceness: int = 0,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Helper:
    """Start a helper; raises `OSError` if that fails.

    `passed`: descriptors that it inherits under their numbers. `confinement`: None for a program that needs all our
    privileges because it touches devices; such a program reads nothing that a tenant wrote. `session`: it leads a
    session, and its children are ended with it. `grace_s`: seconds between SIGTERM and SIGKILL.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(passed),
            start_new_session=session,
            cwd=folder,
            env=environment,
            # some system calls, and no lock
            preexec_fn=partial(_confine, confinement) if confinement is not None else None,  # noqa: PLW1509
        )
    except subprocess.SubprocessError as error:
        raise OSError(0, str(error)) from error
    if niceness:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
    return Helper(process, is_leader=session, grace_s=grace_s)


def start_forked(work: Callable[[], bytes]) -> Helper:
    """A copy of this process that writes what `work` returns and ends; what else it prints is lost.

    It takes milliseconds, where a new interpreter takes a third of a second. It leads a session and may do what we may.
    The caller should have a single thread.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(work, write_end)
    os.close(write_end)
    return Helper(_Fork(pid, os.fdopen(read_end, "rb", buffering=0)), is_leader=True)


def _work(work: Callable[[], bytes], write_end: int) -> NoReturn:
    """In the child."""
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        with open(write_end, "wb", closefd=False) as pipe:
            pipe.write(work())
    finally:
        os._exit(0)


def _confine(wanted_confinement: Confinement) -> None:
    """Apply the confinement in the child, before it executes the program."""
    if wanted_confinement.group is not None:
        os.write(wanted_confinement.group, b"0")
    with contextlib.suppress(PermissionError):
        Path("/proc/self/oom_score_adj").write_bytes(b"%d" % wanted_confinement.out_of_memory_score)
    limits = {
        resource.RLIMIT_DATA: wanted_confinement.data_bytes,
        resource.RLIMIT_CPU: wanted_confinement.cpu_s,
        resource.RLIMIT_FSIZE: _FILE_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: wanted_confinement.open_files,
        **(
            {}
            if wanted_confinement.address_bytes is None
            else {resource.RLIMIT_AS: wanted_confinement.address_bytes}
        ),
    }
    for name, value in limits.items():
        _, hard = resource.getrlimit(name)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (most, most))
    capabilities.keep(wanted_confinement.kept)
    # without new privileges, because gaining any would take the death signal back (kernel: commit_creds)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if wanted_confinement.with_parent:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if wanted_confinement.filtered:
        _FILTER.install()


def _shown(said: bytes) -> str:
    return " ".join(said.decode("utf-8", "replace").split())[-_SHOWN:]
