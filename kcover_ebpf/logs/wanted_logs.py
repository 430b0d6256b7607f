"""What a reader of logs is asked and what it answers. Imports no parser: who asks needs none."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.tunables.host import NAMESPACE_JOB_RULES, NODE_JOB_RULES


@dataclass(frozen=True, slots=True)
class WantedLog:
    """One container whose log is to be read."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    job_rules: tuple[JobRule, ...] = ()
    """What its job's policy expects of it."""

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


class RuleShares:
    """Counts the different job rules of a node: each takes memory of the reader, and tenants write them."""

    words = (
        f"at most {NODE_JOB_RULES} different ones of a node, {NAMESPACE_JOB_RULES} of a namespace"
    )
    """What the bound is."""

    def __init__(self) -> None:
        self._all: set[JobRule] = set()
        self._of: dict[str, set[JobRule]] = {}

    def take(self, namespace: str, rules: Sequence[JobRule]) -> bool:
        """Whether all of these may be looked for, beside those that were taken before."""
        both = self._all.union(rules)
        own = self._of.get(namespace, set()).union(rules)
        if len(both) > NODE_JOB_RULES or len(own) > NAMESPACE_JOB_RULES:
            return False
        self._all, self._of[namespace] = both, own
        return True
