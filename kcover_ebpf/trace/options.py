"""Options of one run of `trace`, from the command line."""

from __future__ import annotations

from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Each field that selects a job is None or empty unless the user chose it."""

    pod: str | None = None
    """Pod of a cluster, as the next six; the agent on its node traces it."""
    job: str | None = None
    namespace: str | None = None
    """Namespace of the pod; None: that of the context."""
    container: str | None = None
    """Container of the pod; None: all of them."""
    agent_namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    pid: int | None = None
    """Process of this host, as the next four."""
    cgroup: str | None = None
    pod_uid: tuple[str, ...] = ()
    """Pods of this node, as UID or UID=NAME."""
    container_id: tuple[str, ...] = ()
    name: str | None = None
    """Name to display for the job."""
    replay: Path | None = None
    """File with a saved trace to show."""
    output: str = "text"
    live: bool = False
    every_thread: bool = False
    save: Path | None = None
    brief: bool = False
    """True if the verdict is known already: end once the threads have been read."""
    with_asker: bool = False
    """True: end when standard input closes."""

    def check(self) -> None:
        """Raise `UsageError` for options that exclude each other, and unless exactly one job is named."""
        if self.live and self.output in ("json", "md"):
            raise UsageError(f"--live never ends, so -o {self.output} cannot be written; use jsonl")
        jobs = (self.pod, self.job, self.pid, self.cgroup, self.pod_uid or None, self.replay)
        if sum(job is not None for job in jobs) != 1:
            raise UsageError(
                "name one job: POD, --job NAME, --pid PID or --cgroup PATH, "
                "or a saved trace: --replay FILE"
            )
        if self.container is not None and self.pod is None:
            raise UsageError("--container requires a POD")
