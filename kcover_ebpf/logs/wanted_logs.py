"""What a reader of logs is asked and what it answers. Imports no parser: who asks needs none."""

from __future__ import annotations

from dataclasses import dataclass

from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.tunables.host import LONGEST_PHASE_S


@dataclass(frozen=True, slots=True)
class WantedLog:
    """One container whose log is to be read."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    job_rules: tuple[JobRule, ...] = ()
    """What its job's policy expects of it."""
    longest_phase_s: float = LONGEST_PHASE_S
    """What the program announces for longer is refused."""

    @property
    def key(self) -> str:
        """What identifies it."""
        return f"{self.pod_uid}/{self.container}"


@dataclass(frozen=True, slots=True)
class RefusedLog:
    """A log that is not read."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class LogTurn:
    """What a turn showed."""

    more: bool = False
    """More is left to be read now."""
    logs: tuple[ContainerLog, ...] = ()
    """All that is known, ages as of `time_s`; of one pod the older starts first."""
    refused: tuple[RefusedLog, ...] = ()
    """Since the turn before."""
    time_s: float = 0.0
    """Unix seconds."""
    busy_s: float = 0.0
    """CPU time that it took."""
    read_bytes: int = 0
    skipped_bytes: int = 0
