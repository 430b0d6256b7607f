"""Stop-diagnose: while a gang is stopped and before it is killed, what its node can keep of it.

Everything is read in place and in little time: the last report, what each thread does, the end of
the containers' logs, the Python stacks of the ranks.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kcover_ebpf.agent.containers import RunningContainer, processes
from kcover_ebpf.agent.orders.evidence_thread import BundleWriter
from kcover_ebpf.agent.reports.report_names import key_of
from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.diagnosis.evidence.evidence import name
from kcover_ebpf.errors import ActionError, ReaderError
from kcover_ebpf.host import procfs
from kcover_ebpf.host.proc_text import split_stat
from kcover_ebpf.host.stack_frames import parse_kernel_stack
from kcover_ebpf.host.thread_reader import thread_numbers
from kcover_ebpf.ids import Tid
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.output.bundles import bundle_name, write_bundle
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S, BUNDLES_KEPT
from kcover_ebpf.watching import py_spy
from kcover_ebpf.watching.py_spy import Spies, is_python

_THREADS = 64

Tails = Callable[[str, Sequence[str]], Mapping[str, str]]
"""The ends of logs by name of a file, of a namespace and uids of pods there; raises `ReaderError`."""


class Bundles:
    """Makes bundles in a directory, and keeps the last 32."""

    def __init__(
        self,
        folder: Path,
        last: Callable[[Gang], FaultReport | None],
        on_error: Callable[[str], None],
        tails: Tails,
        confinement: Confinement = py_spy.SPY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`last`: the newest report of a gang; `tails`: a reader of logs; `confinement`: of py-spy.

        `clock`: unix seconds.
        """
        self._folder, self._last, self._on_error, self._clock = folder, last, on_error, clock
        self._tails, self._spies = tails, confinement

    def of(self, gang: Gang, found: Sequence[RunningContainer]) -> BundleWriter:
        """A bundle of these containers, to be written when there is time."""
        name = bundle_name(self._clock(), key_of(gang).replace("/", "_")[:120])
        return BundleWriter(str(self._folder / name), lambda: self._write(name, gang, found))

    def _write(self, name: str, gang: Gang, found: Sequence[RunningContainer]) -> None:
        end_s = time.monotonic() + BUNDLE_LIMIT_S
        report = self._last(gang)
        files = {
            "report.json": json.dumps(REPORT.encode(report) if report else {}, indent=2) + "\n",
            "threads.txt": threads(found, end_s),
            **self._logs(gang.namespace, found),
        }
        if report is not None:
            files["python.txt"] = python_stacks(report.ranks, end_s, self._spies)
        try:
            self._prune()
            write_bundle(self._folder, name, files)
        except (ActionError, OSError) as error:
            self._on_error(str(error))

    def _logs(self, namespace: str, found: Sequence[RunningContainer]) -> Mapping[str, str]:
        try:
            return self._tails(namespace, sorted({container.pod_uid for container in found}))
        except ReaderError as error:
            return {"logs.txt": f"not observable: logs of containers ({error})\n"}

    def _prune(self) -> None:
        # names begin with the time
        old = sorted(self._folder.glob("*Z-*"))[: -BUNDLES_KEPT + 1]
        for path in old:
            shutil.rmtree(path, ignore_errors=True)


def threads(found: Sequence[RunningContainer], end_s: float) -> str:
    """One line for each thread: pid, tid, state, name, wait channel, and its kernel stack where we may."""
    lines = []
    for pid in sorted(processes(found)):
        for number, task in enumerate(sorted(Path(f"/proc/{pid}/task").glob("*"))):
            if time.monotonic() > end_s or number >= _THREADS:
                lines.append(f"{pid} (more threads)")
                break
            stack = " < ".join(parse_kernel_stack(_text(task / "stack")))
            channel = _text(task / "wchan").strip()
            name, words = split_stat(_text(task / "stat"))
            state = words[0] if words else "?"
            lines.append(f"{pid} {task.name} {state} {name} {channel} {stack}".rstrip())
    return "\n".join(lines) + "\n"


def python_stacks(
    ranks: Sequence[RankSnapshot], end_s: float, confinement: Confinement | None = None
) -> str:
    """The Python frames of each rank's lead thread, innermost first, as far as `end_s` (CLOCK_MONOTONIC) allows."""
    leads = {
        rank.pid: rank
        for rank in ranks
        if rank.role is Role.RANK and rank.exit is None and is_python(procfs.comm(rank.pid))
    }
    spies = Spies(leads, confinement)
    try:
        numbers = {
            int(pid): thread_numbers(pid, [Tid(rank.tid or pid)]) for pid, rank in leads.items()
        }
        found_spied = spies.collect(end_s - time.monotonic(), numbers)
    finally:
        spies.close()
    lines = []
    for pid, lead in leads.items():
        spied = found_spied.threads.get((pid, lead.tid or pid))
        lines.append(f"{name(lead)} (pid {pid})")
        lines += [f"  {frame.text}" for frame in spied.frames] if spied is not None else []
    lines += [f"not observable: {text}" for text in found_spied.blind]
    return "\n".join(lines) + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
