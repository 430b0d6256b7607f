"""NVIDIA's bug report after a fatal Xid: run once, for a bounded time, and kept as a bundle of the node.

Its script asks the driver that has just failed, so it may hang: then it is killed, and left behind if it does not end.
"""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from kcover_ebpf.api.codec import encode
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ActionError
from kcover_ebpf.host import host_programs, procfs
from kcover_ebpf.host.host_programs import HostProgram
from kcover_ebpf.output.bundles import bundle_name, write_bundle
from kcover_ebpf.tunables.agent import (
    BUG_REPORT_DEADLINE_S,
    BUG_REPORT_NICENESS,
    BUG_REPORT_REAP_S,
    BUG_REPORTS_APART_S,
)

_LOG = logging.getLogger(__name__)
_SCRIPT = "nvidia-bug-report.sh"
_NAME = "nvidia-bug-report.log"
_MOST_BYTES = 64 << 20
"""A report that is longer is not kept; some 10 MB are usual."""


@dataclass(frozen=True, slots=True)
class BugReportOptions:
    """Where the script is searched for, and where its report is kept."""

    folder: Path
    """Of the bundles."""
    root: Path = Path("/")
    """The host's files."""
    deadline_s: float = BUG_REPORT_DEADLINE_S


class BugReports:
    """`want` is called by the loop and never waits."""

    def __init__(self, options: BugReportOptions) -> None:
        self._options = options
        self._done: set[tuple[str, str]] = set()
        self._next_s = 0.0
        self._thread: threading.Thread | None = None
        self._helper: Helper | None = None

    def want(self, faults: Iterable[ReportedDeviceFault]) -> None:
        """Make a report if one of these is a fatal Xid that has none yet."""
        new = [fault for fault in faults if _is_fatal_xid(fault) and _key(fault) not in self._done]
        self._done |= {_key(fault) for fault in new}
        busy = self._thread is not None and self._thread.is_alive()
        if not new or busy or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + BUG_REPORTS_APART_S
        self._thread = threading.Thread(
            target=self._make, args=(tuple(new),), name="kcover-bug-report", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the report that is being made."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _make(self, faults: tuple[ReportedDeviceFault, ...]) -> None:
        first = faults[0]
        what = f"{first.device} {first.fault}"
        if self._helper is not None and self._helper.exit_code is None:
            text = "%s: no bug report: process %d of an earlier one hangs"
            _LOG.warning(text, what, self._helper.pid)
            return
        if self._is_kept(first):
            return
        program = host_programs.find(self._options.root, _SCRIPT)
        if program is None:
            _LOG.info("%s: no bug report: %s is not on this node", what, _SCRIPT)
            return
        try:
            outcome = self._run(program, faults)
        except (OSError, ActionError) as error:
            outcome = f"no bug report: {error}"
        _LOG.warning("%s: %s", what, outcome)

    def _is_kept(self, fault: ReportedDeviceFault) -> bool:
        """By an agent before this one."""
        return any(self._options.folder.glob(f"*Z-{_name(fault)}"))

    def _run(self, program: HostProgram, faults: tuple[ReportedDeviceFault, ...]) -> str:
        with tempfile.TemporaryDirectory(
            prefix="kcover-", dir=program.root / "tmp", ignore_cleanup_errors=True
        ) as folder:
            inside = Path("/") / Path(folder).relative_to(program.root) / _NAME
            # a vendor's script, which needs the devices
            running = helper.start(
                program.argv("--safe-mode", "--output-file", str(inside)),
                None,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                session=True,
                niceness=BUG_REPORT_NICENESS,
                folder=Path(folder),
                environment=host_programs.ENVIRONMENT,
            )
            in_time = running.wait(time.monotonic() + self._options.deadline_s)
            if not running.end(BUG_REPORT_REAP_S):
                self._helper = running
            # the script packs what it wrote; killed half-way, the plain text is there
            written = sorted(Path(folder).glob(f"{_NAME}*"))
            if not written:
                return f"the bug report {'is empty' if in_time else 'did not end in time'}"
            return self._keep(written[-1], faults, in_time=in_time)

    def _keep(self, report: Path, faults: tuple[ReportedDeviceFault, ...], *, in_time: bool) -> str:
        size = report.stat().st_size
        if size > _MOST_BYTES:
            return f"the bug report has {size >> 20} MiB, and was not kept"
        name = bundle_name(time.time(), _name(faults[0]))
        text = json.dumps([encode(fault) for fault in faults], indent=2) + "\n"
        bundle = write_bundle(self._options.folder, name, {"faults.json": text.encode()}, [report])
        return f"bug report {'' if in_time else '(cut short) '}in {bundle}"


def _is_fatal_xid(fault: ReportedDeviceFault) -> bool:
    return fault.fault.startswith(("xid_", "sxid_")) and (fault.fatal or fault.unfit)


def _key(fault: ReportedDeviceFault) -> tuple[str, str]:
    return fault.device, fault.fault


def _name(fault: ReportedDeviceFault) -> str:
    boot = procfs.boot_id()[:8]
    return f"node-{boot}-{fault.device.replace(':', '_')}-{fault.fault}"
