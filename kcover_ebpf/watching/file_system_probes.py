"""Asks the file systems that ranks wait for whether they answer, each in a process that can be abandoned.

statfs(2) is a question to the server of NFS, and to the process that serves a FUSE file system. Ceph's monitors answer
it, and Lustre's client may answer from its cache: there a dead server of metadata or data may go unnoticed. This
process itself opens none of their files, and waits for none of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement, Helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import FileSystemProbe, ProbeRequest
from kcover_ebpf.host import procfs
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.tunables.host import HELPER_CPU_S, PROBE_AGAIN_NS, PROBES_AT_ONCE
from kcover_ebpf.watching import statfs_program

PROBE = Confinement(
    data_bytes=32 << 20,
    cpu_s=HELPER_CPU_S,
    # the folders of a rank of any user
    kept=frozenset({Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH}),
    with_parent=False,
)
_COMMAND = (sys.executable, "-I", "-S", "-B", str(Path(statfs_program.__file__)))
_Wait = tuple[Pid, Tid, int]
"""A wait: (thread, start of the wait)."""


@dataclass(slots=True)
class _Probe:
    asked_ns: int
    helper_process: Helper | None
    """None once it has answered, or could not ask."""


class FileSystemProbes:
    """Probes of one job. No method waits."""

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        """`command`: the command of the probe, without its arguments."""
        self._command = command
        self._probes: dict[_Wait, _Probe] = {}

    def tick(self, wanted: Sequence[ProbeRequest]) -> list[FileSystemProbe]:
        """Start probes for these waits, the most important first; returns what is known of them now."""
        if not wanted and not self._probes:
            return []
        now_ns = procfs.boottime_ns()
        waits = {(request.pid, request.tid, request.since_ns): request for request in wanted}
        for wait in self._probes.keys() - waits.keys():
            self._end(self._probes.pop(wait))
        found = [
            fact
            for wait, probe in self._probes.items()
            if (fact := _answer(wait, probe, now_ns)) is not None
        ]
        running = sum(probe.helper_process is not None for probe in self._probes.values())
        for wait, request in waits.items():
            last = self._probes.get(wait)
            is_due = last is None or (
                last.helper_process is None and now_ns - last.asked_ns >= PROBE_AGAIN_NS
            )
            if is_due and running < PROBES_AT_ONCE:
                self._probes[wait] = self._asked(request, now_ns)
                running += 1
        return found

    def close(self) -> None:
        """Abandon all probes and start no more."""
        for probe in self._probes.values():
            self._end(probe)
        self._probes.clear()

    def _asked(self, request: ProbeRequest, now_ns: int) -> _Probe:
        path = (request.path,) if request.fd < 0 else ()
        command = (*self._command, str(request.pid), str(request.fd), *path)
        quiet = subprocess.DEVNULL
        try:
            return _Probe(now_ns, helper.start(command, PROBE, stdout=quiet, stderr=quiet))
        except OSError:
            return _Probe(now_ns, None)

    @staticmethod
    def _end(probe: _Probe) -> None:
        if probe.helper_process is not None:
            # a probe of a dead server may not end: it is abandoned, and counted
            probe.helper_process.end(reap_s=0.0)


def _answer(wait: _Wait, probe: _Probe, now_ns: int) -> FileSystemProbe | None:
    if probe.helper_process is None:
        return None
    pid, tid, _ = wait
    code = probe.helper_process.exit_code
    if code is None:
        return FileSystemProbe(now_ns, pid, tid, probe.asked_ns, answered=False)
    probe.helper_process.end()
    probe.helper_process = None
    if code != 0:
        return None
    return FileSystemProbe(now_ns, pid, tid, probe.asked_ns, answered=True)
