"""One job in pods of two nodes, inspected at once: this host stands for both, and each run sees its own pods alone."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kcover_ebpf.api.pods import Pod
from kcover_ebpf.gang.unwatched import HISTORY
from kcover_ebpf.trace.gang.nodes_at_once import TracedNode, traced_together
from testbed.ports import free_ports
from testbed.skips import ROOT
from tests.kernel.command import COMMAND, PYTHON
from tests.kernel.pods import kubelet_root

pytestmark = pytest.mark.needs("cgroup2")
STEPS, ODD, WORLD = 30, 2, 4


@dataclass
class Node:
    """A pod with a group, and its processes."""

    name: str
    pod: str
    uid: str
    group: Path

    @property
    def place(self) -> TracedNode:
        pod = Pod(
            "ns", self.pod, self.uid, self.name, "Running", 0.0, None, {}, {}, (), (), True
        )  # fmt: skip
        return TracedNode(self.name, "kcover", f"agent-{self.name}", (pod,), (), "job")

    def inspect(self, _: TracedNode) -> Iterator[str]:
        command = [
            COMMAND,
            "trace",
            "-o",
            "jsonl",
            "--name",
            "job",
            "--pod-uid",
            f"{self.uid}={self.pod}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 1, 3), done.stderr
        yield from done.stdout.splitlines()


@pytest.fixture
def root() -> Iterator[Path]:
    """Where the groups of the pods are."""
    with kubelet_root() as path:
        yield path


@pytest.fixture
def nodes(root: Path, tmp_path: Path) -> Iterator[list[Node]]:
    """Two pods with two ranks each, of which rank 2 is at a lock soon."""
    base = free_ports(WORLD)
    found, ranks = [], []
    for name in "ab":
        uid = str(uuid.uuid4())
        group = root / "kubepods/burstable" / f"pod{uid}" / (uuid.uuid4().hex * 2)
        group.mkdir(parents=True)
        found.append(Node(name, f"job-{name}", uid, group))
    program = str(ROOT / "testbed/faults/odd_rank.py")
    for rank in range(WORLD):
        node = found[rank // 2]
        environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD), "BASE": str(base)}
        command = ["sh", "-c", f'echo $$ > {node.group}/cgroup.procs; exec "$@"', "sh"]
        arguments = [PYTHON, program, str(STEPS), str(ODD), "lock"]
        ranks.append(subprocess.Popen([*command, *arguments], env=environ, cwd=tmp_path))
    try:
        yield found
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_the_odd_rank_of_two_nodes_is_named_with_its_line(nodes: list[Node]) -> None:
    time.sleep(STEPS * 0.1 + 12)
    by_name = {node.name: node for node in nodes}
    lines = [
        json.loads(text)
        for text in traced_together(
            [node.place for node in nodes], lambda place: by_name[place.node].inspect(place)
        )
    ]
    assert [line["event"] for line in lines] == [
        *("trace", "threads", "threads", "stacks", "verdict", "end")
    ]
    verdict = lines[-2]
    assert verdict["verdict"] in {"HUNG", "DEADLOCK"}
    assert (verdict["culprit"]["rank"], verdict["culprit"]["pod"]) == (ODD, "job-b")
    assert verdict["culprit"]["node"] == "b"
    assert verdict["victims"] == [0, 1, 3]
    (text,) = [item["text"] for item in verdict["evidence"] if item["kind"] == "outlier"]
    assert text.startswith(f"rank {ODD} is at save_metrics (testbed/faults/odd_rank.py:")
    assert HISTORY in verdict["unobserved"]
    assert not [item for item in verdict["unobserved"] if "not on this host" in item]
    assert {row["rank"] for row in lines[2]["threads"] if row["lead"]} == set(range(WORLD))
    assert lines[-1]["exit_code"] == 1
