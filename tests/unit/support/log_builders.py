"""Log lines of ranks as reports carry them."""

from __future__ import annotations

from kcover_ebpf.api.log_report import ContainerLog, LogFinding, LoggedTraceback
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from tests.unit.support.report_builders import rank, report

NODES = {f"uid-{number}": "ab"[number % 2] for number in range(4)}


BUG = LoggedTraceback("f" * 16, "python_error", "program", 1.6, "train.py:71", 1200, None, 90.0)


def log(number: int, *found: LogFinding | LoggedTraceback, start: int = 0) -> ContainerLog:
    findings = tuple(item for item in found if isinstance(item, LogFinding))
    raised = tuple(item for item in found if isinstance(item, LoggedTraceback))
    return ContainerLog(f"uid-{number}", "main", start, findings, raised)


def seen(*logs: ContainerLog, end: str = "code 1") -> tuple[ReceivedReport, ...]:
    """Reports of both nodes; rank 1 on node b has ended."""
    here: dict[str, list[ContainerLog]] = {"a": [], "b": []}
    for container_log in logs:
        here[NODES[container_log.pod_uid]].append(container_log)
    return (
        report("a", rank(0), rank(2), logs=tuple(here["a"])),
        report("b", rank(1, exit=end), rank(3), logs=tuple(here["b"])),
    )
