"""A job is kept from starting on a bad node: what the init container asks, what is reported, and where the job goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent import preflight
from kcover_ebpf.agent.preflight import PreflightWatch
from kcover_ebpf.api import node_health, rfc3339
from kcover_ebpf.api.fault_report import PodRef
from kcover_ebpf.api.incident import Phase, RestartMethod
from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.api.pods import Container, ContainerEnd, ContainerKind, Pod
from kcover_ebpf.cli import main
from kcover_ebpf.cli import preflight as command
from kcover_ebpf.facts.health import Result
from kcover_ebpf.model.verdict import Cause, FailureClass, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import advance, guards
from kcover_ebpf.recovery.restart.context import Cordon, GangPod, RestartInput, Suspension
from kcover_ebpf.recovery.restart.steps import RestartDetail, Step
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.unit.support.guard_inputs import ask, world
from tests.unit.support.judged import judged
from tests.unit.support.kubeconfigs import kubeconfig
from tests.unit.support.report_builders import NOW_S, pod, report

BAD = NodeHealth("b", NOW_S, 600, "boot", Result.FAIL, NOW_S, 0, reason="nvml: GPU 3 is lost")
WELL = replace(BAD, result=Result.PASS, reason=None)
WAITING = Container(preflight.CONTAINER, ContainerKind.INIT, "p", started_s=NOW_S - 60)
"""It has run for long, so its node has failed."""


def waiting(number: int, *containers: Container) -> Pod:
    made = pod(number, "Pending")
    main_one = tuple(replace(container, started_s=None) for container in made.containers)
    return replace(made, containers=(*(containers or (WAITING,)), *main_one), ready=False)


# --- the init container

NODE = "node-2"


def run(tmp_path: Path, answer: Answer, *arguments: str) -> int:
    def say(request: Request) -> Answer:
        assert request.path == f"{node_health.HEALTHS}/{NODE}"
        return answer

    with serving(say) as server:
        config = kubeconfig(tmp_path, server.url)
        return main(["preflight", "--node", NODE, "--kubeconfig", config, *arguments])


def health(result: Result, *, age_s: float = 5.0, name: str = NODE) -> Answer:
    now_s = time.time()
    made = replace(BAD, node=NODE, result=result, time_s=now_s, since_s=now_s)
    body: dict[str, Any] = node_health.object_of(made)
    written = rfc3339.to_text(now_s - age_s)
    body["metadata"] = {"name": name, "managedFields": [{"time": written}]}
    return Answer(body=body)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (lambda: health(Result.FAIL), preflight.FAILED, "fail: nvml: GPU 3 is lost"),
        (lambda: health(Result.PASS), 0, "pass"),
        (lambda: health(Result.WARN), 0, "warn"),
        (lambda: health(Result.UNKNOWN), 0, "unknown"),
        (lambda: health(Result.FAIL, age_s=3600.0), 0, "not reported an inspection recently"),
        (lambda: health(Result.FAIL, name="other"), 0, "it is about node"),
        (lambda: Answer(403, {"message": "no"}), 0, "unknown"),
        (lambda: Answer(404, {"message": "none"}), 0, "unknown"),
        (lambda: Answer(body={"metadata": {"name": NODE}, "status": 7}), 0, "unknown"),
    ],
)
def test_preflight__the_command_a_job_starts_unless_the_node_is_known_to_be_bad(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer: Callable[[], Answer],
    code: int,
    words: str,
) -> None:
    # made now: an inspection that was reported when the tests were collected may be stale by now
    assert run(tmp_path, answer()) == code
    assert words in capsys.readouterr().out


def test_preflight__the_command_waits_while_the_node_fails_and_says_each_thing_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PREFLIGHT_AGAIN_S", 0.01)
    answers = [health(Result.FAIL), health(Result.FAIL), health(Result.PASS)]
    with serving(lambda _: answers.pop(0)) as server:
        config = kubeconfig(tmp_path, server.url)
        assert main(["preflight", "--node", NODE, "--kubeconfig", config, "--wait"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"node {NODE}: fail: nvml: GPU 3 is lost", f"node {NODE}: pass: {BAD.reason}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a PID namespace")
def test_preflight__the_command_that_waits_ends_at_once_when_its_pod_is_deleted(
    tmp_path: Path,
) -> None:
    with serving(lambda _: health(Result.FAIL)) as server:
        config = kubeconfig(tmp_path, server.url)
        words = "preflight", "--node", NODE, "--kubeconfig", config, "--wait"
        # as process 1 of a container, which has no default action of a signal
        inside = "unshare", "--pid", "--fork", str(Path(sys.executable).with_name("kcover-ebpf"))
        with subprocess.Popen([*inside, *words], stdout=subprocess.PIPE, text=True) as waits:
            assert waits.stdout is not None
            assert "fail" in waits.stdout.readline()
            child = Path(f"/proc/{waits.pid}/task/{waits.pid}/children").read_text()
            os.kill(int(child), signal.SIGTERM)
            assert waits.wait(20) == preflight.FAILED


def test_preflight__the_command_needs_the_name_of_the_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NODE_NAME", "KCOVER_NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["preflight"]) == 2
    assert "NODE_NAME" in capsys.readouterr().err


# --- the agent


def verdict(*pods: Pod, health: NodeHealth | None = BAD) -> Verdict | None:
    return PreflightWatch("b").verdict(pods, health, NOW_S - 0.5)


def test_agent__a_pod_that_waits_on_a_bad_node_is_a_fault_of_the_node() -> None:
    found = verdict(waiting(3), pod(1))
    assert found is not None
    assert (found.kind, found.cause) == (VerdictKind.DEVICE_FAULT, Cause.PREFLIGHT)
    assert found.culprit is not None
    assert (found.culprit.pod, found.culprit.pod_uid, found.culprit.node) == ("j-3", "uid-3", "b")
    assert "nvml: GPU 3 is lost" in found.evidence[0].text


NO_FAULT: dict[str, tuple[Pod, NodeHealth | None]] = {
    "the node is well: any container may be named so": (waiting(3), WELL),
    "nothing is known of the node": (waiting(3), None),
    "it may still let the job start": (waiting(3, replace(WAITING, started_s=NOW_S - 15)), BAD),
    "it passed": (waiting(3, replace(WAITING, started_s=None, last_end=ContainerEnd(0))), BAD),
    "another container runs": (waiting(3, replace(WAITING, name="init")), BAD),
    "a main container is named so": (waiting(3, replace(WAITING, kind=ContainerKind.MAIN)), BAD),
    "the pod is being deleted": (replace(waiting(3), deleted_s=NOW_S), BAD),
}


@pytest.mark.parametrize(("member", "state"), NO_FAULT.values(), ids=NO_FAULT)
def test_agent__anything_else_is_no_fault(member: Pod, state: NodeHealth | None) -> None:
    assert verdict(member, health=state) is None


SLOW = Container(
    preflight.BANDWIDTH, ContainerKind.INIT, "p", last_end=ContainerEnd(preflight.FAILED)
)
"""Its kubelet waits before it starts it again."""


def test_agent__a_slow_node_is_a_fault_of_it_where_the_operator_believes_the_job() -> None:
    assert verdict(waiting(3, SLOW), health=WELL) is None, "any container may be named so"
    watch = PreflightWatch("b", believes_bandwidth=True)
    found = watch.verdict([pod(1), waiting(3, SLOW)], WELL, NOW_S)
    assert found is not None
    assert (found.kind, found.cause) == (VerdictKind.DEVICE_FAULT, Cause.PREFLIGHT)
    assert found.culprit is not None
    assert (found.culprit.pod, found.culprit.node) == ("j-3", "b")
    assert "slower than the floor of the job's own bandwidth check" in found.evidence[0].text
    for other in (
        replace(SLOW, last_end=ContainerEnd(0)),
        replace(SLOW, last_end=ContainerEnd(137)),
        replace(SLOW, started_s=NOW_S),
        replace(SLOW, kind=ContainerKind.MAIN),
    ):
        assert watch.verdict([waiting(3, other)], WELL, NOW_S) is None
    assert watch.verdict([waiting(3)], WELL, NOW_S) is None, "an inspection is still the agent's"


def test_agent__it_lasts_from_when_it_was_first_seen() -> None:
    watch = PreflightWatch("b")
    watch.verdict([waiting(3)], BAD, NOW_S)
    later = watch.verdict([waiting(3), waiting(1)], BAD, NOW_S + 7)
    assert later is not None
    assert later.since_s == NOW_S
    assert later.culprit is not None
    assert later.culprit.pod == "j-3"
    watch.keep(["uid-1"])
    again = watch.verdict([waiting(3)], BAD, NOW_S + 9)
    assert again is not None
    assert again.since_s == NOW_S + 9


# --- where the job goes


def gang(*numbers: int, now_s: float = NOW_S) -> RestartInput:
    """A job of which these pods wait on node b."""
    seen = tuple(
        report(
            node,
            suspicious=False,
            trained=False,
            pods=tuple(
                PodRef(f"j-{number}", f"uid-{number}") for number in range(4) if number % 2 == odd
            ),
            verdict=verdict(*map(waiting, numbers)) if odd else None,
        )
        for odd, node in enumerate("ab")
    )
    pods = tuple(
        GangPod(waiting(number) if number in numbers else pod(number)) for number in range(4)
    )
    return world(seen, pods=pods, now_s=now_s)


def test_preflight__the_whole_job_is_replaced_elsewhere_by_its_own_switch() -> None:
    asked = ask(gang(3))
    move = guards.decide(asked)
    assert move.status is not None
    assert move.status.action is not None
    assert (move.status.phase, move.status.action.way) == (
        Phase.SHUTTING_DOWN,
        RestartMethod.REPLACE,
    )
    assert move.status.cause is Cause.PREFLIGHT
    assert move.status.failure is FailureClass.HARDWARE
    assert RestartDetail.read(move.status.action.detail).elsewhere == "b"
    done = advance.advance(replace(asked.context, status=move.status))
    suspended, cordoned = done.calls
    assert isinstance(suspended, Suspension)
    assert suspended.suspended
    assert cordoned == Cordon(("b",), "a job was not started there: the node failed its preflight")


def test_preflight__a_job_that_is_not_armed_is_only_reported() -> None:
    move = guards.decide(ask(gang(3), armed=False))
    assert move.status is not None
    assert move.status.phase is Phase.OBSERVED


def test_preflight__a_second_bad_node_is_left_as_well_and_then_it_says_so() -> None:
    asked = ask(gang(3))
    begun = guards.decide(asked).status
    assert begun is not None
    assert begun.action is not None
    detail = RestartDetail(pods=4, before_s=0.0).words()
    acting = replace(begun, action=replace(begun.action, step=Step.RETURN.value, detail=detail))
    second = advance.advance(replace(asked.context, status=acting)).status
    assert second is not None
    assert second.action is not None
    assert (second.action.step, second.action.attempt) == (Step.SUSPEND.value, 2)
    assert RestartDetail.read(second.action.detail).elsewhere == "b"
    acting = replace(second, action=replace(second.action, step=Step.RETURN.value, detail=detail))
    ended = advance.advance(replace(asked.context, status=acting)).status
    assert ended is not None
    assert ended.phase is Phase.FAILED
    assert "node b also failed its preflight; every restart method was tried" in ended.message


def test_preflight__a_node_that_turns_bad_during_a_restart_in_place_is_left() -> None:
    """The init container runs again with all others."""
    asked = ask(gang(3))
    begun = guards.decide(asked).status
    assert begun is not None
    assert begun.action is not None
    detail = RestartDetail(pods=4, restarts="0").words()
    action = replace(
        begun.action,
        step=Step.KILL.value,
        way=RestartMethod.IN_PLACE,
        started_s=NOW_S - 60,
        detail=detail,
    )
    acting = judged(replace(begun, action=action, restarts=()), cause=Cause.STOPPED)
    moved = advance.advance(replace(asked.context, status=acting)).status
    assert moved is not None
    assert moved.action is not None
    assert moved.action.way is RestartMethod.REPLACE
    assert RestartDetail.read(moved.action.detail).elsewhere == "b"


def test_preflight__pods_of_the_start_before_say_nothing_about_the_next() -> None:
    asked = ask(gang(3))
    begun = guards.decide(asked).status
    assert begun is not None
    assert begun.action is not None
    detail = RestartDetail(pods=4, before_s=NOW_S).words()
    acting = replace(begun, action=replace(begun.action, step=Step.RETURN.value, detail=detail))
    move = advance.advance(replace(asked.context, status=acting))
    assert (move.status, move.calls) == (None, ())
