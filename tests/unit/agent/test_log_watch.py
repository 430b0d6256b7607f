"""The thread of the agent that reads logs: which, how much of a core, and what happens to those that are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcover_ebpf.agent import log_watch
from kcover_ebpf.agent.log_watch import LogWatch
from kcover_ebpf.agent.outputs import NodeOutputs
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.api.log_report import ContainerLog
from kcover_ebpf.api.pods import Container, ContainerKind, Pod
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.logs import log_turns, rules
from kcover_ebpf.logs.log_turns import LogTurns
from kcover_ebpf.logs.wanted_logs import LogTurn, WantedLog
from kcover_ebpf.tunables.agent import LOG_CORE_SHARE
from tests.unit.support.report_builders import pod

pytestmark = pytest.mark.needs("root")
FULL = "2026-11-22T10:00:00.5Z stderr F OSError: [Errno 28] No space left on device\n"


class ReadHere:
    """In the place of a reader: the same turns in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.starts = folder, 1
        self.turns = LogTurns(folder, rules.shipped())
        self.asked: list[Sequence[WantedLog] | None] = []
        self.ends_over = ""

    def turn(self, wanted: Sequence[WantedLog] | None) -> LogTurn:
        self.asked.append(wanted)
        if wanted is not None and any(wanted_log.key == self.ends_over for wanted_log in wanted):
            self.starts += 1
            self.turns = LogTurns(self.folder, rules.shipped())
            raise ReaderError("the reader of logs ended: signal 9", self.ends_over)
        return self.turns.turn(wanted)


class Node:
    """/var/log/pods of a node, and what reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused: list[str] = []
        self.source = ReadHere(folder)
        self.watch = LogWatch(self.source, self.refused.append)

    def log(self, member_pod: Pod, start: int = 0, container: str = "main") -> Path:
        name = f"{member_pod.namespace}_{member_pod.name}_{member_pod.uid}"
        path = self.folder / name / container / f"{start}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, member_pod: Pod, text: str, start: int = 0, container: str = "main") -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        with self.log(member_pod, start, container).open("a") as file:
            file.write(text.replace("2026-11-22T10:00:00", now))

    def shown(self, *members_pod: Pod) -> tuple[ContainerLog, ...]:
        return self.watch.of_pods([other_pod.uid for other_pod in members_pod], time.time())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def member(number: int, *container: Container) -> Pod:
    found = pod(number)
    main = tuple(replace(other_container, id=f"c{number}") for other_container in found.containers)
    return replace(found, containers=(*container, *main))


def test_log_watch__only_logs_of_watched_pods_and_of_their_ranks_are_read(node: Node) -> None:
    sidecar = Container("proxy", ContainerKind.SIDECAR, "s")
    ours, other = member(0, sidecar), member(1)
    node.write(ours, FULL)
    node.write(ours, FULL, container="proxy")
    node.write(other, FULL)
    node.watch.follow([ours])
    node.watch.turn()
    (found,) = node.shown(ours, other)
    assert (found.pod_uid, found.container) == ("uid-0", "main")
    assert [finding.rule for finding in found.findings] == ["storage_full"]
    assert node.watch.read_bytes == len(FULL)


def test_log_watch__a_pod_with_many_containers_leaves_room_for_the_others(node: Node) -> None:
    many = [Container(f"c{number}", ContainerKind.MAIN, f"m{number}") for number in range(300)]
    node.write(member(1), FULL)
    node.watch.follow([member(0, *many), member(1)])
    node.watch.turn()
    (found,) = node.shown(member(1))
    assert [finding.rule for finding in found.findings] == ["storage_full"]


def test_log_watch__the_start_that_crashed_is_remembered_beside_the_one_that_runs(
    node: Node,
) -> None:
    ours = member(0)
    node.watch.follow([ours])
    for start in range(3):
        node.write(ours, FULL, start)
        while node.watch.turn().more:
            pass
        node.watch.turn()
    assert [container_log.start for container_log in node.shown(ours)] == [1, 2]


def test_log_watch__a_pod_that_is_gone_is_forgotten_after_a_while(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = member(0)
    node.write(ours, FULL)
    node.watch.follow([ours])
    node.watch.turn()
    node.watch.follow([])
    node.write(ours, FULL)
    node.watch.turn()
    (found,) = node.shown(ours)
    assert found.findings[0].count == 2, "its last words are read"
    monkeypatch.setattr(log_turns, "LOG_LINGER_S", 0.0)
    node.watch.turn()
    node.watch.turn()
    assert node.shown(ours) == ()


def test_log_watch__a_log_that_is_a_link_is_refused_once_and_disturbs_no_other(
    node: Node, tmp_path: Path
) -> None:
    evil, good = member(0), member(1)
    secret = tmp_path / "shadow"
    secret.write_text("OSError: [Errno 28] No space left\n")
    node.log(evil).symlink_to(secret)
    node.write(good, FULL)
    node.watch.follow([evil, good])
    for _ in range(3):
        node.watch.turn()
    (found,) = node.shown(evil, good)
    assert found.pod_uid == "uid-1"
    (reason,) = node.refused
    assert "log of ns/j-0 main is not read" in reason


def test_log_watch__a_pod_that_writes_without_end_delays_the_others_by_one_block(
    node: Node,
) -> None:
    loud, quiet = member(0), member(1)
    node.write(loud, "2026-11-22T10:00:00.5Z stdout F all is well, loss 0.3\n" * 20_000)
    node.write(quiet, FULL)
    node.watch.follow([loud, quiet])
    assert node.watch.turn().more, "more is left of the loud one"
    assert [container_log.pod_uid for container_log in node.shown(loud, quiet)] == ["uid-1"]


def test_log_watch__an_age_grows_while_nothing_is_written(node: Node) -> None:
    ours = member(0)
    node.write(ours, FULL)
    node.watch.follow([ours])
    node.watch.turn()
    now_s = time.time()
    (first,) = node.watch.of_pods(["uid-0"], now_s)
    (second,) = node.watch.of_pods(["uid-0"], now_s + 10)
    grown_s = second.findings[0].age_s - first.findings[0].age_s
    assert grown_s == pytest.approx(10, abs=0.01)


def test_log_watch__it_takes_its_share_of_a_core_and_no_more(node: Node) -> None:
    loud = member(0)
    node.write(loud, FULL * 5_000)
    node.watch.follow([loud])
    thread = threading.Thread(target=node.watch.run)
    began_s, cpu_s = time.monotonic(), time.process_time()
    thread.start()
    time.sleep(3.0)
    node.watch.close()
    thread.join()
    share = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
    assert share < 4 * LOG_CORE_SHARE, (
        "the first block may take longer than all pauses of a short test"
    )
    assert node.watch.read_bytes > 0


def test_log_watch__calm_logs_are_read_seldom_and_at_once_when_what_they_show_is_reported(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "LOG_POLL_S", 0.01)
    monkeypatch.setattr(log_watch, "LOG_CALM_POLL_S", 600.0)
    ours = member(0)
    node.watch.follow([ours], is_reported=False)
    thread = threading.Thread(target=node.watch.run)
    thread.start()
    while not node.source.asked:
        time.sleep(0.01)
    time.sleep(0.3)
    assert len(node.source.asked) == 1
    node.write(ours, FULL)
    node.watch.follow([ours], is_reported=True)
    deadline_s = time.monotonic() + 60.0
    while not node.shown(ours) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    node.watch.follow([ours], is_reported=False)
    assert node.shown(ours)
    time.sleep(0.3)
    asked = len(node.source.asked)
    time.sleep(0.3)
    assert len(node.source.asked) == asked, "they are calm again"
    node.watch.close()
    thread.join()


@pytest.mark.parametrize("is_reported", [True, False])
def test_node_outputs__logs_are_followed_as_the_reports_of_the_pass_want_it(
    *, is_reported: bool
) -> None:
    made: list[bool] = []
    builder = SimpleNamespace(make=lambda *_: made.append(is_reported), reports_logs=is_reported)
    faults = SimpleNamespace(on_pass=print, reported=lambda _: ())
    over = SimpleNamespace(update=lambda *_: ())
    parts = SimpleNamespace(telemetry=None), over
    outputs = NodeOutputs(builder, SimpleNamespace(), faults, *parts)  # type: ignore[arg-type]
    outputs._next_devices_ns = 1 << 62
    followed: list[bool] = []
    outputs.logs = SimpleNamespace(  # type: ignore[assignment]
        taken_skipped=frozenset,
        follow=lambda *_, is_reported: followed.append(is_reported and bool(made)),
    )
    outputs.on_pass([])
    assert followed == [is_reported]


def test_log_watch__an_error_of_one_turn_does_not_end_the_thread(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "LOG_POLL_S", 0.01)
    monkeypatch.setattr(node.watch, "turn", lambda: 1 / 0)
    thread = threading.Thread(target=node.watch.run)
    thread.start()
    while len(node.refused) < 3:
        assert thread.is_alive()
        time.sleep(0.01)
    node.watch.close()
    thread.join()
    assert "ZeroDivisionError" in node.refused[0]


def test_log_watch__a_log_over_which_the_reader_ended_twice_is_not_read_and_others_are(
    node: Node,
) -> None:
    evil, good = member(0), member(1)
    node.write(evil, FULL)
    node.write(good, FULL)
    node.source.ends_over = "uid-0/main"
    node.watch.follow([evil, good])
    for _ in range(4):
        node.watch.turn()
    (found,) = node.shown(evil, good)
    assert found.pod_uid == "uid-1"
    (reason,) = node.refused
    assert reason == (
        "log of ns/j-0 main is not read: the reader of logs ended: signal 9, for the second time"
    )


def test_log_watch__what_is_followed_is_said_when_it_changes_and_to_a_new_reader(
    node: Node,
) -> None:
    node.watch.follow([member(0)])
    node.watch.turn()
    node.watch.turn()
    node.source.starts += 1
    node.watch.turn()
    node.watch.follow([member(0), member(1)])
    node.watch.turn()
    assert [None if item is None else len(item) for item in node.source.asked] == [1, None, 1, 2]


STEPS = JobRule("trains", KnownLine.STEP, every_seconds=600)


def test_log_watch__rules_of_a_policy_that_changed_are_said_to_the_reader(node: Node) -> None:
    node.write(member(0), "2026-11-22T10:00:00.5Z stdout F step 7\n")
    node.watch.follow([member(0)])
    node.watch.turn()
    node.watch.follow([member(0)], {"uid-0": (STEPS,)})
    node.write(member(0), "2026-11-22T10:00:00.5Z stdout F step 8\n")
    node.watch.turn()
    (found,) = node.shown(member(0))
    assert [rule.rule for rule in found.rules] == ["trains"]
    assert [item is None for item in node.source.asked] == [False, False]


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize(
    ("wall_s", "boottime_s", "silent_s"),
    [
        pytest.param(3600.0, 1.0, 1.0, id="the clock is set forward"),
        pytest.param(-3600.0, 1.0, 0.0, id="the clock is set back"),
        pytest.param(3600.0, 3600.0, 30.0, id="the node was paused"),
        pytest.param(20.0, 20.0, 20.0, id="the turn before was long"),
    ],
)
def test_log_turns__only_time_that_was_observed_is_a_silence(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    wall_s: float,
    boottime_s: float,
    silent_s: float,
    is_read: bool,
) -> None:
    node.watch.follow([member(0)], {"uid-0": (STEPS,)})
    node.write(member(0), "2026-11-22T10:00:00.0Z stdout F step 7\n")
    if is_read:
        node.watch.turn()
    now_s, now_boottime_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "time", lambda: now_s + wall_s)
    monkeypatch.setattr(time, "clock_gettime", lambda _: now_boottime_s + boottime_s)
    before_s = node.shown(member(0))[0].rules[0].age_s if is_read else 0.0
    node.watch.turn()
    (found,) = node.shown(member(0))
    (reading,) = found.rules
    assert found.progress is not None
    assert reading.age_s == found.progress.age_s == pytest.approx(silent_s, abs=2)
    assert not reading.broken
    # also in a report between the step and the next turn
    assert before_s is not None
    assert before_s <= 32


def test_log_watch__rules_beyond_what_a_namespace_may_have_are_left_out_and_it_is_said_once(
    node: Node,
) -> None:
    members = [member(number) for number in range(6)]
    other = replace(member(6), namespace="other")
    rules = {
        other_pod.uid: tuple(replace(STEPS, name=f"{other_pod.uid} {n}") for n in range(8))
        for other_pod in (*members, other)
    }
    for _ in range(2):
        node.watch.follow((*members, other), rules)
        node.watch.turn()
    asked = node.source.asked[0]
    assert asked is not None
    assert [len(wanted_log.job_rules) for wanted_log in asked] == [8, 8, 8, 8, 0, 0, 8]
    assert sorted(node.refused) == [
        f"job rules of ns/j-{n} are not read: at most 64 different ones per node, 32 of a namespace"
        for n in (4, 5)
    ]


def test_log_watch__pods_with_the_same_rules_share_them(node: Node) -> None:
    members = [member(number) for number in range(100)]
    node.watch.follow(members, {other_pod.uid: (STEPS,) for other_pod in members})
    node.watch.turn()
    assert node.refused == []


def test_log_turns__a_turn_ends_after_its_time_and_the_next_one_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    members = [member(number) for number in range(3)]
    for other_pod in members:
        node.write(other_pod, FULL)
    node.watch.follow(members)
    monkeypatch.setattr(log_turns, "LOG_TURN_BUSY_S", 1e-9)
    assert node.watch.turn().more
    assert node.shown(*members) == ()
    monkeypatch.setattr(log_turns, "LOG_TURN_BUSY_S", 1.0)
    assert not node.watch.turn().more
    assert len(node.shown(*members)) == 3
