"""Part 6: what the sensor reports about faults in a real CUDA training, and the related kernel log lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.gpucheck import children
from tools.gpucheck.plan import ROOT, Notes, NotPossible, Plan

_KMSG = Path("/dev/kmsg")
_MARK = "gpu-check: begins"
_WANTED = re.compile(r"NVRM|NVSRM|Xid|nvidia|gpu-check", re.IGNORECASE)
_GRACE_S = 20.0
"""Seconds for the sensor's start and end, in addition to the time that it watches."""
_HEALTHY_S = 10.0
_SEEN_S = 18.0
"""Includes the start of CUDA in the ranks, which takes some seconds."""
_QUICK_HEALTHY_S, _QUICK_SEEN_S = 4.0, 7.0
_FAULTS = (
    "none",
    "stop",
    "lock",
    "endless",
    "endless-yield",
    "endless-blocking_sync",
    "misaligned",
    "address",
)
"""In this order: some drivers need a reset after the last ones."""
_OPTIONS = {"address": ["--pin-driver"]}
"""Options of the sensor: also report an Xid by the driver's own tracepoint, if it has one."""


def sensor(python: str, *arguments: str) -> list[str]:
    """Command line of the sensor in this checkout, which need not be installed."""
    start = "import sys; from kcover_ebpf.cli import main; sys.exit(main())"
    return [python, "-c", start, *arguments]


def interpreter() -> str:
    """A Python that can run the sensor; raises `NotPossible` with the error of the last one tried."""
    candidates = [str(ROOT / ".venv/bin/python"), sys.executable, "/usr/bin/python3"]
    said = "no Python"
    for candidate in candidates:
        if not os.access(candidate, os.X_OK):
            continue
        done = subprocess.run(
            sensor(candidate, "--version"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=children.environment(),
        )
        if done.returncode == 0:
            return candidate
        said = children.last_line(done.stderr)
    raise NotPossible(f"the sensor does not start: {said}")


class KernelLog:
    """Kernel log lines from now on. A test line of ours, if it can be written, shows that the log can be read."""

    def __init__(self) -> None:
        self.failure = ""
        self._descriptor = -1
        try:
            self._descriptor = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.failure = f"{_KMSG}: {error.strerror}"
        # some systems do not permit writing there
        with contextlib.suppress(OSError):
            _KMSG.write_text(f"<6>{_MARK}\n")

    def lines(self) -> list[str]:
        found: list[str] = []
        with contextlib.suppress(OSError):
            while True:
                try:
                    text = os.read(self._descriptor, 8192).decode(errors="replace")
                except BrokenPipeError:
                    # the oldest lines were overwritten: continue with the remaining ones
                    continue
                found += [line for line in text.splitlines() if _is_wanted(line)]
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def measure(plan: Plan, notes: Notes) -> None:
    python = interpreter()
    notes.add("interpreter", python)
    for fault in ("stop", "address") if plan.quick else _FAULTS:
        try:
            notes.add(fault, scenario(python, fault, plan))
        except NotPossible as problem:
            notes.add(fault, {"not possible here": str(problem)})


def scenario(python: str, fault: str, plan: Plan) -> dict[str, Any]:
    healthy_s = _QUICK_HEALTHY_S if plan.quick else _HEALTHY_S
    watched_s = healthy_s + (_QUICK_SEEN_S if plan.quick else _SEEN_S)
    began = plan.folder / f"fault-{fault}"
    began.unlink(missing_ok=True)
    log = KernelLog()
    try:
        job = ["sh", "-c", _script(fault, healthy_s, began)]
        options = ["-o", "json", "--act", "observe", "--for", f"{watched_s:.0f}s"]
        options += _OPTIONS.get(fault, [])
        command = sensor(python, "run", *options, "--", *job)
        events, errors = _watch(command, watched_s + _GRACE_S, plan.folder)
        facts = summary(events, _read_s(began))
        facts["job said"] = [line for line in errors.splitlines() if line.startswith("rank: ")]
        facts["kernel log"] = log.failure or log.lines()
    finally:
        log.close()
    (plan.folder / f"sensor-{fault}.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in events)
    )
    return facts


def _script(fault: str, healthy_s: float, began: Path) -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    parts = []
    for number in (0, 1):
        words = [str(number), str(port), fault, str(healthy_s), str(began)]
        rank = shlex.join(children.module("training", *words))
        parts.append(f"RANK={number} LOCAL_RANK={number} WORLD_SIZE=2 {rank} &")
    return " ".join([*parts, "wait"])


def _watch(
    command: Sequence[str], limit_s: float, folder: Path
) -> tuple[list[dict[str, Any]], str]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=children.environment(),
        process_group=0,
    )
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(children.KILL_PATIENCE_S)
        children.end(process)
        raise NotPossible(f"the sensor did not end within {limit_s:.0f} s") from None
    if process.returncode == 3:
        raise NotPossible(f"the sensor cannot observe: {children.last_line(errors)}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], errors


def _is_wanted(line: str) -> bool:
    # the report is meant to be sent to other people
    return _WANTED.search(line) is not None and "Serial Number" not in line


def _read_s(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return None


def summary(events: Sequence[dict[str, Any]], began_s: float | None) -> dict[str, Any]:
    """Reports from before and after the fault began (unix seconds; None: it never did)."""
    verdicts = [event for event in events if event["event"] == "verdict"]
    faulty = [verdict for verdict in verdicts if verdict["verdict"] not in ("WORKING", "UNKNOWN")]
    end_s = began_s if began_s is not None else float("inf")
    after = [entry for entry in faulty if entry["time"] >= end_s]
    facts: dict[str, Any] = {
        "began": began_s is not None,
        "false verdicts": [_short(entry, end_s) for entry in faulty if entry["time"] < end_s],
        "verdicts": [_short(verdict, end_s) for verdict in verdicts],
        "device facts": [event for event in events if "xid" in str(event.get("fact", "")).lower()],
        "unobserved": sorted(
            {text for verdict in verdicts for text in verdict.get("unobserved", [])}
        ),
    }
    if after:
        facts["first"] = _short(after[0], end_s)
    return facts


def _short(verdict: dict[str, Any], began_s: float) -> dict[str, Any]:
    culprit = verdict.get("culprit") or {}
    after_s = verdict["time"] - began_s
    return {
        "verdict": verdict["verdict"],
        "cause": verdict["cause"],
        "rank": culprit.get("rank"),
        "after_s": round(after_s, 2) if after_s > float("-inf") else None,
        "evidence": [item["text"] for item in verdict.get("evidence", [])],
    }
