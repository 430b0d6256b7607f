"""A verdict, a fact, a wait table as JSON object and as text for people. Pure: no clock, no file.

The JSON contract (schema `kcover.io/v1alpha1`) is in docs/json.md; fields are added, never renamed.
Times in JSON are unix seconds; in text they are local wall-clock times and spans.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from kcover_ebpf.diagnosis.failures.exits import signal_name
from kcover_ebpf.facts import devices, host, kernel
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind, WaitRow

SCHEMA = "kcover.io/v1alpha1"

CAUSE_TEXT = {
    Cause.PREFLIGHT: "is not started: its node failed the inspection",
    Cause.REQUESTED: "is restarted on request",
    Cause.EXITED: "exited with an error",
    Cause.KILLED: "was killed",
    Cause.OOM_KILLED: "was killed by the out-of-memory killer",
    Cause.ABORTED: "aborted",
    Cause.SEGFAULT: "crashed on a bad memory access",
    Cause.LEFT_EARLY: "exited with code 0 while other ranks continued",
    Cause.TIMED_OUT: "kept the other ranks waiting until one gave up",
    Cause.DEVICE: "has a faulty device",
    Cause.STOPPED: "is stopped by a signal",
    Cause.FROZEN: "is frozen by its control group",
    Cause.BLOCKED_LOCK: "waits for a lock that is not released",
    Cause.BLOCKED_SLEEP: "is in a sleep that does not end",
    Cause.BLOCKED_READ: "waits for input that never arrives",
    Cause.BLOCKED_UNKNOWN: "waits in the kernel",
    Cause.SPINNING: "runs without making progress",
    Cause.STORAGE: "waits for storage that does not answer",
    Cause.DRIVER_STUCK: "is stuck in a device driver call",
    Cause.LOADER_STUCK: "waits for a data loader that is stuck",
    Cause.LOADER_DIED: "waits for a data loader that died",
    Cause.MISSING_RANK: "never appeared",
    Cause.LINK: "cannot reach its peers over the network",
    Cause.PEER_GONE: "waits for a peer that is gone",
    Cause.COLLECTIVE_MISMATCH: "is in a different collective from its peers",
    Cause.WAIT_CYCLE: "is part of a wait cycle",
    Cause.NOT_IN_COLLECTIVE: "did not join the collective the other ranks are in",
    Cause.COLLECTIVE_STUCK: "is in a collective that all ranks joined and that does not complete",
    Cause.COLLECTIVE_FAILED: "has a communicator that failed",
    Cause.DEVICE_WAIT: "waits for its device, like every other rank",
    Cause.CPU_THROTTLED: "is throttled by its CPU limit",
    Cause.MEMORY_PRESSURE: "is short of memory",
    Cause.SLOW_RANK: "is slower than its peers",
    Cause.SLOW_JOB: "has become much slower",
    Cause.TRAINING: "is training",
    Cause.CHECKPOINT: "writes a checkpoint",
    Cause.COMPUTING: "computes",
    Cause.LOADING: "loads data",
    Cause.STARTING: "is starting",
    Cause.WAITING_FOR_USER: "waits for user input",
    Cause.SLEEPING: "sleeps on purpose",
    Cause.DEBUGGER: "is stopped by a debugger",
    Cause.SUSPENDED: "was suspended",
    Cause.ENDING: "is ending",
    Cause.UNKNOWN: "for an unknown reason",
}
"""What each cause means, to be read after the name of a rank or of the job."""


def verdict_object(verdict: Verdict) -> dict[str, Any]:
    """The fields of the JSON event "verdict", without its envelope; by hand, in the order in which people read them."""
    culprit = verdict.culprit
    return {
        "job": verdict.job,
        "incident": verdict.incident,
        "verdict": verdict.kind.value,
        "culprit": None if culprit is None else dataclasses.asdict(culprit),
        "cause": verdict.cause.value,
        "since": verdict.since_s,
        "evidence": [{"kind": item.kind.value, "text": item.text} for item in verdict.evidence],
        "victims": list(verdict.victims),
        "deadline": verdict.deadline_s,
        "unobserved": list(verdict.unobserved),
        "factor": verdict.factor,
        "graph": list(verdict.graph),
        "certainty": None if verdict.certainty is None else verdict.certainty.value,
        "acts_at": verdict.acts_at_s,
        "acts_why": verdict.acts_why,
        "waits": [dataclasses.asdict(row) for row in verdict.waits],
    }


def fact_object(fact: kernel.Fact) -> dict[str, Any]:
    """The fact with its name ("process_exit") and all its fields."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(fact).__name__).lower()
    return {"fact": name, **dataclasses.asdict(fact)}


def event_line(event: str, time_s: float, fields: dict[str, Any]) -> str:
    """One JSON line with its envelope, without the newline."""
    envelope = {"schema": SCHEMA, "time": round(time_s, 6), "event": event}
    return json.dumps(envelope | fields, default=_plain, allow_nan=False, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no JSON form")


def printable(text: str) -> str:
    """The text with whatever could command a terminal made visible: names come from the job."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def span(seconds: float) -> str:
    """Such as "0.3s", "12.1s", "2m 05s", "1h 02m" or "3d 01h"; negative spans count as nothing."""
    seconds = max(seconds, 0.0)
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest_s:02d}s"
    hours = minutes // 60
    return f"{hours}h {minutes % 60:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24:02d}h"


def headline(verdict: Verdict) -> str:
    """One line: verdict, who, cause, and for how long others have waited."""
    words = [f"{verdict.kind.value}  {_who(verdict)}{verdict.cause.value}"]
    if verdict.cause is not Cause.UNKNOWN:
        words.append(f": {CAUSE_TEXT[verdict.cause]}")
    if verdict.factor is not None:
        words.append(f", {verdict.factor:.1f} times as slow as its peers")
    if verdict.kind is not VerdictKind.WORKING or verdict.cause is not Cause.TRAINING:
        lasted = span(verdict.time_s - verdict.since_s)
        words.append(
            f", {lasted} ago" if verdict.kind is VerdictKind.CRASHED else f", for {lasted}"
        )
    if verdict.victims:
        words.append(f"; {_ranks(verdict.victims)}")
    return printable("".join(words))


def _who(verdict: Verdict) -> str:
    if verdict.culprit is not None:
        return culprit_text(verdict.culprit) + " "
    return "culprit unknown, " if verdict.kind.is_fault else ""


def culprit_text(culprit: Culprit) -> str:
    """Such as "rank 2 (pid 4711, thread 4713)", as far as it is known."""
    details = []
    if culprit.pid is not None:
        details.append(f"pid {culprit.pid}")
    if culprit.tid not in (None, culprit.pid):
        details.append(f"thread {culprit.tid}")
    places = {"pod": culprit.pod, "node": culprit.node, "device": culprit.device}
    details += [f"{label} {name}" for label, name in places.items() if name is not None]
    if culprit.rank is None:
        return ", ".join(details) or "unknown"
    either = "" if culprit.or_rank is None else f" or rank {culprit.or_rank}"
    return f"rank {culprit.rank}{either}" + (f" ({', '.join(details)})" if details else "")


def _ranks(victims: tuple[int, ...]) -> str:
    if len(victims) == 1:
        return f"rank {victims[0]} waits"
    if len(victims) > 8:
        return f"{len(victims)} ranks wait"
    return f"ranks {', '.join(map(str, victims))} wait"


def details(verdict: Verdict) -> list[str]:
    """The lines below a headline: what supports the verdict, and who waits where."""
    return [*reasons(verdict), *wait_table(verdict.waits)]


def _clock(moment_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment_s))


def certainty_text(verdict: Verdict, moment: Callable[[float], str] = _clock) -> str:
    """How sure the verdict is, and when an armed job is ended for it; empty where nothing is wrong.

    `moment`: unix seconds as text; by default the local time of day.
    """
    if verdict.certainty is None:
        return ""
    if verdict.acts_at_s is None:
        return f"{verdict.certainty.value}: {verdict.acts_why}"
    when = f"an armed job is ended at {moment(verdict.acts_at_s)} if nothing moves"
    return f"{verdict.certainty.value}: {when}: {verdict.acts_why}"


def reasons(verdict: Verdict, moment: Callable[[float], str] = _clock) -> list[str]:
    """Evidence, the framework's own deadline, the graph of waits, the certainty, and what was not seen.

    `moment`: as for `certainty_text`.
    """
    lines = [f"- {item.text} [{item.kind.value}]" for item in verdict.evidence]
    if verdict.deadline_s is not None:
        more = span(verdict.deadline_s - verdict.time_s)
        until = moment(verdict.deadline_s)
        lines.append(f"the framework would have waited until {until} ({more} more)")
    lines += [f"  {line}" for line in verdict.graph]
    if verdict.certainty is not None:
        lines.append(certainty_text(verdict, moment))
    if verdict.unobserved:
        lines.append(f"not observed: {'; '.join(verdict.unobserved)}")
    return [printable(line) for line in lines]


_TITLES = ("RANK", "ROLE", "PID/TID", "THREAD", "WAITS IN", "SINCE", "NOTE")


def wait_table(rows: Sequence[WaitRow]) -> list[str]:
    """Who waits where, since when, in aligned columns; no lines for no rows."""
    if not rows:
        return []
    return aligned([_TITLES, *(_cells(row) for row in rows)])


def _cells(row: WaitRow) -> tuple[str, ...]:
    return (
        "-" if row.rank is None else str(row.rank),
        row.role,
        str(row.pid) if row.tid == row.pid else f"{row.pid}/{row.tid}",
        row.comm,
        row.wait,
        span(row.since_s),
        row.note,
    )


def aligned(rows: Iterable[Sequence[str]], gap: str = "  ") -> list[str]:
    """Cells as columns with a gap between them, no space at the end of a line."""
    texts = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]


def _exit_text(process_exit: kernel.ProcessExit) -> str:
    if not process_exit.known:
        return f"pid {process_exit.pid} is gone; its exit was not observed"
    if process_exit.signal:
        return f"pid {process_exit.pid} ({process_exit.comm}) was killed by {signal_name(process_exit.signal)}"
    return f"pid {process_exit.pid} ({process_exit.comm}) exited with code {process_exit.exit_code}"


def fact_text(fact: kernel.Fact) -> str:
    """An announced fact as a sentence."""
    match fact:
        case kernel.ProcessExit():
            text = _exit_text(fact)
        case kernel.FatalSignal():
            text = f"pid {fact.pid} ({fact.comm}) is dying of {signal_name(fact.signal)}"
        case kernel.OomKill():
            text = f"pid {fact.pid} ({fact.comm}) was chosen by the out-of-memory killer"
        case kernel.SignalSent(sender_pid=0):
            text = f"the kernel sent {signal_name(fact.signal)} to pid {fact.pid}"
        case kernel.SignalSent():
            sender = f"pid {fact.sender_pid} ({fact.sender_comm})"
            text = f"{sender} sent {signal_name(fact.signal)} to pid {fact.pid}"
        case _:
            text = _device_fact_text(fact)
    return printable(text)


def _device_fact_text(fact: kernel.Fact) -> str:
    match fact:
        case host.CollectivesSeen():
            late = [f"rank {rank.rank} of {rank.size} is behind" for rank in fact.behind]
            late += [f"rank {rank.rank} of {rank.size} does not answer" for rank in fact.missing]
            late += [f"rank {rank.rank} of {rank.size}: {rank.trouble}" for rank in fact.failed]
            late += [f"{side.rank_count} rank(s) launched {side.operations}" for side in fact.sides]
            return f"NCCL: {', '.join(late) or 'no rank differs from the others'}"
        case devices.DeviceFault():
            return f"pid {fact.pid} has a faulty device open: {fact.text}"
        case devices.XidReported() | devices.AerError() | devices.MemoryFault():
            return device_text(fact)
        case devices.BlockError():
            what = f"{fact.operation} of {fact.size_bytes} B at sector {fact.sector}"
            return f"disk {fact.disk} failed a {what}: {fact.error} error"
        case devices.DriverCall():
            where = f"{fact.node} [{fact.wait_channel or 'in the driver'}]"
            return f"pid {fact.pid} thread {fact.tid} is stuck in a driver call: {where}"
        case devices.DeviceNotice():
            return f"{fact.device}: {fact.text}"
        case devices.PortChange():
            return f"port {fact.port} is {'up' if fact.up else 'down'}: {fact.text}"
        case _:
            return str(fact_object(fact)["fact"])


_BY_FIRMWARE = (devices.MemoryKind.ARM_PROCESSOR, devices.MemoryKind.VENDOR_SECTION)


def device_text(fault: devices.XidReported | devices.AerError | devices.MemoryFault) -> str:
    """What a device reported, as a sentence."""
    match fault:
        case devices.XidReported():
            doubt = "" if fault.confirmed else " (possibly forged: only the log says so)"
            kind = "SXid" if fault.number >= 10000 else "Xid"
            return f"{kind} {fault.number} on {fault.device}{doubt}: {fault.text}"
        case devices.AerError():
            errors = ", ".join(fault.errors) or "unknown"
            severity = fault.severity.name.lower()
            return f"{fault.count} {severity} PCIe error(s) at {fault.device}: {errors}"
        case devices.MemoryFault():
            state = "corrected" if fault.corrected else "uncorrected"
            if fault.kind in _BY_FIRMWARE:
                return f"{state} hardware error reported by firmware: {fault.text}"
            return f"{state} {fault.kind.value} memory error at {fault.address:#x}: {fault.text}"


def address(endpoint: tuple[str, int]) -> str:
    """Such as "10.0.0.1:29500" or "[::1]:29500"."""
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
