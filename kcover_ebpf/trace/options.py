"""What one run of `trace` was asked for."""

from __future__ import annotations

from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options of the command line; each way to name a job is None or empty unless it was chosen."""

    pod: str | None = None
    """Of a cluster, as the next six are; the agent on its node traces it."""
    job: str | None = None
    namespace: str | None = None
    """None: that of the context."""
    container: str | None = None
    """None: all of the pod."""
    agent_namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    pid: int | None = None
    """Of this host, as the next four are."""
    cgroup: str | None = None
    pod_uid: tuple[str, ...] = ()
    """UID or UID=NAME."""
    container_id: tuple[str, ...] = ()
    name: str | None = None
    """To show for the job."""
    replay: Path | None = None
    """A saved run."""
    output: str = "text"
    live: bool = False
    every_thread: bool = False
    save: Path | None = None
    brief: bool = False
    """The verdict is known already: end when the threads have been read."""
    with_asker: bool = False
    """End when standard input closes."""

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
