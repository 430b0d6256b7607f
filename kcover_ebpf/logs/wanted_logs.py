"""Requests to a reader of logs, and its answers. Imports no parser, because the requester needs none."""

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
    """Rules of its job's policy for the log."""

    @property
    def key(self) -> str:
        """Identity of the log: pod uid and container name."""
        return f"{self.pod_uid}/{self.container}"


@dataclass(frozen=True, slots=True)
class RefusedLog:
    """A log that is not read, with the reason."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class LogTurn:
    """The results of one turn over all logs."""

    more: bool = False
    """True if unread data remains, so that the next turn should follow at once."""
    logs: tuple[ContainerLog, ...] = ()
    """All results, with ages as of `time_s`; earlier starts of a pod first."""
    refused: tuple[RefusedLog, ...] = ()
    """Logs refused since the previous turn."""
    time_s: float = 0.0
    """End of the turn, unix seconds."""
    busy_s: float = 0.0
    """CPU seconds that the turn took."""
    read_bytes: int = 0
    skipped_bytes: int = 0


class RuleShares:
    """Limits the different job rules of a node: each takes memory in the reader, and tenants write them."""

    words = (
        f"at most {NODE_JOB_RULES} different ones per node, {NAMESPACE_JOB_RULES} of a namespace"
    )
    """Description of the bound for messages to the user."""

    def __init__(self) -> None:
        self._all: set[JobRule] = set()
        self._of: dict[str, set[JobRule]] = {}

    def take(self, namespace: str, rules: Sequence[JobRule]) -> bool:
        """Whether all of these rules fit in addition to those accepted before."""
        both = self._all.union(rules)
        own = self._of.get(namespace, set()).union(rules)
        if len(both) > NODE_JOB_RULES or len(own) > NAMESPACE_JOB_RULES:
            return False
        self._all, self._of[namespace] = both, own
        return True
