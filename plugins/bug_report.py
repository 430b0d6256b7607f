#!/usr/bin/env python3
# kcover-ebpf: deadline=30 problem=warn
"""NVIDIA's bug report after a fatal Xid: begun once for each, in the background, and left on the node.

The kernel's log is read for Xids after which a GPU must be reset or replaced. `nvidia-bug-report.sh --safe-mode` then
runs for five minutes at most and never twice within an hour; it writes `/var/tmp/kcover-BOOT-DEVICE-xid79.log.gz`
in the files that it runs in: the node's, or those of its driver container.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.devices.catalog.files import load
from kcover_ebpf.devices.fault_rules import of_xid
from kcover_ebpf.devices.xid import kmsg_parser, kmsg_reader
from kcover_ebpf.facts.devices import XidReported
from kcover_ebpf.host import host_programs
from kcover_ebpf.inspection.plugins import exit_code_of

PASS, PROBLEM, UNKNOWN = 0, 1, 2
_SCRIPT = "nvidia-bug-report.sh"
_FOLDER = "var/tmp"
_LONGEST_S = 300
_KILLED_S = 2
_APART_S = 3600.0
"""Seconds between two reports. A report covers all GPUs of the node, so faults within an hour share one."""


def examine(root: Path) -> tuple[int, str]:
    """Exit code and evidence; `root`: the host's root folder."""
    try:
        xids = list(fatal_xids(root / "dev/kmsg"))
    except OSError as error:
        return UNKNOWN, f"/dev/kmsg cannot be read: {error.strerror}"
    if not xids:
        return PASS, "no fatal Xid since the boot"
    program = host_programs.find(root, _SCRIPT)
    if program is None:
        return UNKNOWN, f"{len(xids)} fatal Xid(s), and {_SCRIPT} is not on this node"
    folder = program.root / _FOLDER
    boot = (root / "proc/sys/kernel/random/boot_id").read_text()[:8]
    reports = {xid: folder / f"kcover-{boot}-{named(xid)}.log" for xid in xids}
    made = [path for path in folder.glob("kcover-*-*id*.log*") if path.is_file()]
    new = [path for path in reports.values() if not any(_is_of(path, other) for other in made)]
    if not new:
        return PASS, f"each fatal Xid has its report in {folder}"
    if any(time.time() - path.stat().st_mtime < _APART_S for path in made):
        return PASS, f"a report of the last hour is in {folder}"
    try:
        start(program, new[0])
    except (OSError, subprocess.CalledProcessError) as error:
        return UNKNOWN, f"no bug report can be made: {error}"
    return PROBLEM, f"a bug report is being written: {new[0]}"


def fatal_xids(log: Path) -> Iterator[XidReported]:
    """The first Xid of each number and device after which the device must be reset or replaced; raises `OSError`."""
    catalog = load()
    seen = set()
    for raw in kmsg_reader.stored(str(log)):
        record = kmsg_parser.parse_record(raw) if kmsg_reader.may_concern(raw) else None
        notice = kmsg_parser.read_record(record, 0) if record is not None else None
        if not isinstance(notice, XidReported) or (notice.device, notice.number) in seen:
            continue
        meaning = of_xid(notice, catalog)
        if meaning is not None and (meaning.fault.ends_job or meaning.fault.device_unfit):
            seen.add((notice.device, notice.number))
            yield notice


def named(xid: XidReported) -> str:
    """Name for a file, with device and Xid number."""
    return f"{xid.device.replace(':', '_')}-xid{xid.number}"


def _is_of(report: Path, made: Path) -> bool:
    # in progress, compressed, or plain text if the script was interrupted
    return made.name.startswith(report.name)


def start(program: host_programs.HostProgram, report: Path) -> None:
    """Start the report in a session of its process, because it takes longer than this check may."""
    # it may hang before it writes anything, and must not be started again
    report.with_name(f"{report.name}.begun").touch()
    inside = Path("/") / report.relative_to(program.root)
    command = program.argv("--safe-mode", "--output-file", str(inside))
    limited = ["timeout", f"--kill-after={_KILLED_S}", str(_LONGEST_S), "nice", *command]
    subprocess.run(
        ["setsid", "--fork", *limited],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(host_programs.ENVIRONMENT),
        umask=0o077,
        check=True,
    )


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: examine(host_programs.host_root())))
