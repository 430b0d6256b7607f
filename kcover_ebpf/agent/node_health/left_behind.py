"""Checks whose process hangs in the kernel and was abandoned, and their results until that process exits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kcover_ebpf.agent.node_health.health_memory import MOST_LINES
from kcover_ebpf.api import rfc3339
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.health import Result
from kcover_ebpf.host import process_tree
from kcover_ebpf.ids import Pid
from kcover_ebpf.inspection.result import CheckResult, PartResult


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """An abandoned process, and the results that count while its check is not run."""

    pid: Pid
    start_ticks: int
    check: PartResult
    devices: tuple[PartResult, ...] = ()
    """PCI addresses or ports that the check failed, with their results."""

    def is_there(self) -> bool:
        """True until the process has ended; a zombie counts as ended."""
        # By its threads: the first of a killed process ends at once, while another may stay in state D.
        return process_tree.is_same_alive(self.pid, self.start_ticks)


def of_check(check: CheckResult, devices: Iterable[PartResult], now_s: float) -> LeftBehind | None:
    """From the outcome of a check and all devices of its round; None if no process was abandoned."""
    pid = check.left_behind
    stat = process_tree.read_stat(pid) if pid is not None else None
    if pid is None or stat is None or not stat.alive:
        return None
    # The time rather than a duration: a changing text would be another condition and another Event.
    since = f"{rfc3339.to_text(now_s)[:16]}Z"
    text = f"not run again: process {pid} of an earlier round hangs in it since {since}"
    failing = check.failing_devices
    return LeftBehind(
        Pid(pid),
        stat.start_ticks,
        _meanwhile(check.part, text),
        tuple(_meanwhile(device, text) for device in devices if device.name in failing),
    )


def _meanwhile(part: PartResult, text: str) -> PartResult:
    """A failure stays: a hang is no sign that it is over. All other results are unknown meanwhile."""
    if part.result is Result.FAIL:
        return replace(part, evidence=(*part.evidence[: MOST_LINES - 1], text))
    return replace(part, result=Result.UNKNOWN, evidence=(text,), advice="")


def with_left_behind(
    found: Sequence[PartResult], meanwhile: Iterable[PartResult]
) -> list[PartResult]:
    """Results of a round plus those of abandoned checks: a failure, unless the round itself saw another one."""
    by_name = {part_result.name: part_result for part_result in found}
    for result in meanwhile:
        now = by_name.get(result.name)
        if now is None or (result.result is Result.FAIL and now.result is not Result.FAIL):
            by_name[result.name] = result
    return list(by_name.values())
