"""`trace POD`: what is asked of the API server, and one clear line for everything that is in the way."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from kcover_ebpf.errors import CannotObserve, Forbidden, Unreachable, UsageError
from kcover_ebpf.gang.unwatched import HISTORY
from kcover_ebpf.model.process_state import State
from kcover_ebpf.trace import show
from kcover_ebpf.trace.gang import agent_pods, remote
from kcover_ebpf.trace.options import TraceOptions
from kcover_ebpf.trace.records import parse
from tests.unit.support.fake_exec import (
    UIDS,
    FakeExec,
    FakeExecServer,
    agent_pod,
    pod,
    snapshot,
    traced_lines,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeExecServer:
    server = FakeExecServer()
    monkeypatch.setattr(remote, "connect", lambda *_: server)
    monkeypatch.setattr(remote, "Exec", FakeExec)
    return server


def lines(**wanted: Any) -> list[str]:
    return list(remote.lines(TraceOptions(namespace="research", **wanted)))


def test_lines__a_pod_is_traced_by_the_agent_of_its_node(server: FakeExecServer) -> None:
    assert lines(pod="b") == traced_lines("node2")
    ((agent, command),) = server.commands
    assert agent == "agent-2"
    assert command[:4] == ["kcover-ebpf", "trace", "-o", "jsonl"]
    assert command[-4:] == ["--pod-uid", f"{UIDS['b']}=b", "--container-id", "c" * 64]
    assert "--live" not in command


def test_lines__without_a_namespace_it_is_that_of_the_context(
    server: FakeExecServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pods = []
    monkeypatch.setattr(remote, "namespace_of", lambda *_: "physics")
    with pytest.raises(UsageError, match="no pod a in namespace physics"):
        list(remote.lines(TraceOptions(pod="a")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_show__a_signal_while_the_connection_is_read_is_no_break_of_it(
    number: signal.Signals,
) -> None:
    def broken() -> Iterator[str]:
        yield from traced_lines("node1")[:1]
        try:
            signal.raise_signal(number)
        except Exception as error:
            raise CannotObserve("the connection broke") from error

    assert show.show(broken(), TraceOptions(output="jsonl")) == 128 + number


def test_lines__live_is_passed_on(server: FakeExecServer) -> None:
    lines(pod="a", live=True)
    assert "--live" in server.commands[0][1]


def test_lines__one_container_of_several_can_be_chosen(server: FakeExecServer) -> None:
    server.pods[0] = pod("a", main="1" * 64, proxy="2" * 64)
    lines(pod="a", container="proxy")
    lines(pod="a")
    assert server.commands[0][1].count("--container-id") == 1
    assert "2" * 64 in server.commands[0][1]
    assert server.commands[1][1].count("--container-id") == 2


def test_lines__all_nodes_of_a_job_become_one_trace(server: FakeExecServer) -> None:
    server.out = {
        "agent-1": snapshot("node1", "a", 0),
        "agent-2": snapshot("node2", "b", 1, State.STOPPED),
    }
    events = [parse(line) for line in lines(job="train")]
    assert [event.event for event in events] == [
        *("trace", "threads", "threads", "stacks", "verdict", "end")
    ]
    assert events[0].header is not None
    assert events[0].header.pods == ("a", "b")
    assert events[-1].exit_code == 1
    verdict = events[-2].fields
    assert (verdict["cause"], verdict["culprit"]["pod"]) == ("stopped", "b")
    assert verdict["culprit"]["node"] == "node2"
    assert "source" not in verdict
    assert "report" not in verdict


def test_lines__a_report_of_one_node_alone_is_not_shown(server: FakeExecServer) -> None:
    server.out["agent-1"] = snapshot("node1", "a", 0)
    assert lines(pod="a") == traced_lines("node1")


def test_lines__where_no_agent_sends_snapshots_that_is_an_error(server: FakeExecServer) -> None:
    with pytest.raises(CannotObserve, match="of an older version"):
        lines(job="train")


def test_lines__a_node_that_cannot_be_traced_is_reported_in_the_verdict(
    server: FakeExecServer,
) -> None:
    server.out = {"agent-1": snapshot("node1", "a", 0), "agent-2": []}
    server.codes["agent-2"] = 3
    server.said = "kcover-ebpf: BPF is refused"
    (verdict,) = [json.loads(line) for line in lines(job="train") if '"verdict"' in line][:1]
    reason = "node node2 (agent research/agent-2 on node2: BPF is refused)"
    assert verdict["unobserved"] == [HISTORY, reason]


def gone(server: FakeExecServer) -> None:
    server.pods.clear()


def pending(server: FakeExecServer) -> None:
    server.pods[0] = pod("a", "", "Pending")


def no_agent(server: FakeExecServer) -> None:
    server.agents["node1"] = []


def starting_agent(server: FakeExecServer) -> None:
    server.agents["node1"] = [agent_pod("agent-1", phase="Pending")]


def no_exec(server: FakeExecServer) -> None:
    server.refuse["exec"] = Forbidden("pods/exec is forbidden")


def no_list(server: FakeExecServer) -> None:
    server.refuse["/api/v1/pods"] = Forbidden("pods is forbidden")


def unreachable(server: FakeExecServer) -> None:
    server.refuse["/api/v1/pods"] = Unreachable("connection refused")


def cut(server: FakeExecServer) -> None:
    server.codes["agent-1"] = None


def no_program(server: FakeExecServer) -> None:
    server.codes["agent-1"], server.said = 127, "not found"


def agent_fails(server: FakeExecServer) -> None:
    server.codes["agent-1"], server.said = 2, "kcover-ebpf: no process is in a"


OBSTACLES = {
    "no such pod": (gone, UsageError, "no pod a in namespace research"),
    "a pod that does not run": (pending, UsageError, "pod a is Pending, not Running"),
    "no agent there": (no_agent, CannotObserve, "no agent of kcover-ebpf runs on node node1"),
    "an agent that only starts": (starting_agent, CannotObserve, "agent-1 is Pending"),
    "exec is forbidden": (
        no_exec,
        CannotObserve,
        "not allowed to exec into the agents of namespace",
    ),
    "agents cannot be listed": (no_list, CannotObserve, "--agent-namespace"),
    "no API server": (unreachable, CannotObserve, "cannot ask the API server"),
    "a lost connection": (cut, CannotObserve, "was cut"),
    "an image without the program": (no_program, CannotObserve, "has no kcover-ebpf: not found"),
    "an agent that says no": (agent_fails, CannotObserve, "on node1: no process is in a"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_lines__an_obstacle_is_reported_in_one_line(name: str, server: FakeExecServer) -> None:
    obstruct, kind, said = OBSTACLES[name]
    obstruct(server)
    with pytest.raises(kind, match=said) as caught:
        lines(pod="a")
    assert "\n" not in str(caught.value)


def test_lines__a_container_that_is_not_there_is_reported_with_those_that_are(
    server: FakeExecServer,
) -> None:
    with pytest.raises(UsageError, match="no container proxy; it has main"):
        lines(pod="a", container="proxy")


def test_lines__a_job_that_is_not_there_is_reported_with_those_that_are(
    server: FakeExecServer,
) -> None:
    with pytest.raises(UsageError, match=r"no pods of a job other .* there are train"):
        lines(job="other")


def test_lines__live_follows_one_node(server: FakeExecServer) -> None:
    with pytest.raises(UsageError, match="name one pod"):
        lines(job="train", live=True)


def test_agent_on__a_pod_of_a_tenant_that_carries_the_labels_is_no_agent(
    server: FakeExecServer,
) -> None:
    mine = pod("mine")
    mine["metadata"]["namespace"] = "aaa-evil"
    server.agents["node1"].insert(0, mine)
    assert agent_pods.agent_on(server, "node1", None) == ("research", "agent-1")  # type: ignore[arg-type]
    server.agents["node1"] = [mine]
    with pytest.raises(CannotObserve, match="no agent of kcover-ebpf runs"):
        agent_pods.agent_on(server, "node1", None)  # type: ignore[arg-type]


def test_agent_on__where_two_namespaces_have_one_none_is_believed(server: FakeExecServer) -> None:
    other = agent_pod("mine")
    other["metadata"]["namespace"] = "aaa-evil"
    server.agents["node1"].append(other)
    with pytest.raises(CannotObserve, match=r"aaa-evil, research.*--agent-namespace"):
        agent_pods.agent_on(server, "node1", None)  # type: ignore[arg-type]
