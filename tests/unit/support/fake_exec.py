"""A fake of `kubectl exec` into agents, and pods to trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from kcover_ebpf.api.fault_report import REPORT, PodRef
from kcover_ebpf.errors import NotFound
from kcover_ebpf.model.process_state import State
from kcover_ebpf.output.formatting import event_line
from kcover_ebpf.trace.records import TRACE, TraceHeader
from tests.unit.support import report_builders

UIDS = {"a": "11111111-1111-1111-1111-111111111111", "b": "22222222-2222-2222-2222-222222222222"}


def pod(
    name: str, node: str = "node1", phase: str = "Running", **containers: str
) -> dict[str, Any]:
    names = containers or {"main": "c" * 64}
    return {
        "metadata": {
            "name": name,
            "namespace": "research",
            "uid": UIDS.get(name, "33333333-3333-3333-3333-333333333333"),
            "labels": {
                "batch.kubernetes.io/job-name": "train",
                "batch.kubernetes.io/job-completion-index": "0",
            },
        },
        "spec": {"nodeName": node, "containers": [{"name": text} for text in names]},
        "status": {
            "phase": phase,
            "containerStatuses": [
                {"name": text, "containerID": f"containerd://{number}"}
                for text, number in names.items()
            ],
        },
    }


def agent_pod(name: str, node: str = "node1", phase: str = "Running") -> dict[str, Any]:
    """A pod as the chart's DaemonSet makes it."""
    made = pod(name, node, phase)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    made["spec"]["hostPID"] = True
    return made


def snapshot(node: str, name: str, number: int, state: State = State.FUTEX) -> list[str]:
    """The same with the report that is judged with those of other nodes: one rank, in a pod of this name."""
    rank = report_builders.rank(number, state, pod_uid=UIDS[name], world_size=2)
    report = report_builders.report(node, rank, pods=(PodRef(name, UIDS[name]),)).report
    return traced_lines(node, report=REPORT.encode(report))


class FakeExecServer:
    """The API server: pods by path, and what exec answers."""

    host = "https://api"

    def __init__(self) -> None:
        self.pods = [pod("a"), pod("b", "node2")]
        self.agents: dict[str, list[dict[str, Any]]] = {
            "node1": [agent_pod("agent-1")],
            "node2": [agent_pod("agent-2", "node2")],
        }
        self.refuse: dict[str, Exception] = {}
        self.commands: list[tuple[str, list[str]]] = []
        self.out: dict[str, list[str]] = {
            "agent-1": traced_lines("node1"),
            "agent-2": traced_lines("node2"),
        }
        self.codes: dict[str, int | None] = {}
        self.said = ""

    def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        found = [entry for entry in self.pods if entry["metadata"]["name"] == name]
        if not found:
            raise NotFound("404")
        return found[0]

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        if path in self.refuse:
            raise self.refuse[path]
        if query is None:
            return {"items": self.pods}
        return {"items": self.agents[query["fieldSelector"].rpartition("=")[2]]}


class FakeExec:
    def __init__(
        self,
        server: FakeExecServer,
        namespace: str,
        agent: str,
        container: str,
        command: Sequence[str],
    ) -> None:
        if "exec" in server.refuse:
            raise server.refuse["exec"]
        server.commands.append((agent, list(command)))
        self._server, self._agent = server, agent
        self.said = server.said
        self.refusal = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def lines(self, beat_s: float) -> Iterator[str]:
        yield from self._server.out[self._agent]

    @property
    def exit_code(self) -> int | None:
        return self._server.codes.get(self._agent, 0)


def traced_lines(node: str, verdict: str = "WORKING", **more: Any) -> list[str]:
    """What the agent of a node writes; `more`: fields of its verdict."""
    fields: dict[str, Any] = more | {
        "verdict": verdict,
        "culprit": None,
        "headline": verdict,
        "unobserved": [],
    }
    return [
        event_line("trace", 1.0, TRACE.encode(TraceHeader("train", node))),
        event_line("threads", 1.0, {"threads": []}),
        event_line("stacks", 1.0, {"stacks": []}),
        event_line("verdict", 1.0, fields),
        event_line("end", 1.0, {"exit_code": int(verdict == "HUNG")}),
    ]
