"""The real agents of all nodes, on this host: the test bed's nodes share its processes and control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from testbed.driver.cluster import ROOT, Cluster, home


@dataclass
class Agent:
    """One agent; it may be killed and started again."""

    node: str
    folder: Path
    kubeconfig: Path
    namespace: str
    """Where its report about the node lies."""
    process: subprocess.Popen[bytes] | None = None
    options: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    """What its environment has besides ours."""
    root: Path | None = None
    """Another checkout whose agent it is; None: this one's."""

    def start(self) -> None:
        """Run it."""
        state = self.folder / self.node
        python = Path(sys.executable) if self.root is None else self.root / ".venv/bin/python"
        command = [
            str(python.with_name("kcover-ebpf")), "agent", f"--node={self.node}",
            f"--state-dir={state}", f"--namespace={self.namespace}",
            f"--kubeconfig={self.kubeconfig}", *self.options,
        ]  # fmt: skip
        with open(self.folder / f"{self.node}.log", "ab") as log:
            environ = {**os.environ, **self.environ}
            self.process = subprocess.Popen(command, stderr=log, cwd=ROOT, env=environ)

    def kill(self) -> None:
        """As a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def said(self) -> str:
        """Its log."""
        return (self.folder / f"{self.node}.log").read_text()


def states(cluster: Cluster) -> Path:
    """A link to the folder with the agents' state directories, by the name of the node."""
    return cluster.kubeconfig.with_name("agents")


@contextmanager
def running(
    cluster: Cluster,
    folder: Path,
    kubeconfig: Path | None = None,
    options: Sequence[str] = (),
    for_node: Callable[[str], tuple[Sequence[str], Mapping[str, str]]] = lambda _: ((), {}),
) -> Iterator[dict[str, Agent]]:
    """An agent for each node of the cluster, by the node's name, as long as the block lasts.

    `for_node`: further options and environment of the agent of a node.
    """
    agents, namespace = {}, home(cluster)
    states(cluster).unlink(missing_ok=True)
    states(cluster).symlink_to(folder)
    try:
        for node in cluster.get("nodes"):
            name = node["metadata"]["name"]
            config = kubeconfig or cluster.kubeconfig
            more, environ = for_node(name)
            agents[name] = Agent(
                name, folder, config, namespace, options=(*options, *more), environ=environ
            )
            agents[name].start()
        yield agents
    finally:
        for agent in agents.values():
            agent.kill()
