"""Orders, carried out on real processes in groups laid out as a kubelet does."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent.orders.evidence_thread import BundleWriter
from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.order import Verb
from kcover_ebpf.api.rfc3339 import from_text
from kcover_ebpf.host import cgroups
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S

from .helpers import state_of
from .order_bench import Bench, wait_until
from .pods import LABEL, FakePod

pytestmark = pytest.mark.needs("root", "cgroup2")
NOW_S = from_text("2026-01-01T01:00:00Z")


def test_stop_stops_every_process_of_the_gang_and_no_other(bench: Bench) -> None:
    one, two = bench.pod("a", containers=("main", "log")), bench.pod("b")
    other = bench.pod("c", job="another")
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert (ack.result, ack.processes, ack.bundle) == (AckResult.DONE, 9, "/bundle")
    assert (one.states(), two.states()) == ("TTTTTT", "TTT")
    assert "T" not in other.states()
    # the evidence is taken when all processes are stopped
    wait_until(lambda: bool(bench.evidence))
    assert bench.evidence[0].count("T") == 9


def test_a_stopped_gang_stays_stopped_and_its_kill_is_reported_before(bench: Bench) -> None:
    pod = bench.pod("a")
    (gang,) = bench.registry.gangs()
    bench.order(Verb.STOP)
    assert bench.executor.is_stopped_by_us(gang)
    ack = bench.order(Verb.KILL, "2")
    assert ack is not None
    assert (ack.verb, ack.result, ack.processes) == (Verb.KILL, AckResult.DONE, 1)
    wait_until(lambda: not pod.pids())
    assert not bench.executor.is_stopped_by_us(gang)
    assert bench.killed == [gang]
    assert [other_ack.order for other_ack in bench.executor.acks(gang)] == ["1", "2"]


def test_a_kill_without_a_stop_of_the_same_incident_is_refused(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    ack = bench.order(Verb.KILL, "2", uid="another")
    assert ack is not None
    assert (ack.result, ack.text) == (
        AckResult.REFUSED,
        "no processes are stopped on this node for this incident",
    )
    assert pod.states() == "TTT"


def test_a_kill_spares_what_came_after_the_stop(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    late = pod.add("late")
    bench.registry.on_pod(pod.event())
    bench.order(Verb.KILL, "2")
    wait_until(lambda: len(pod.pids()) == 3)
    assert {Path(f"/proc/{pid}/cgroup").read_text().strip()[-64:] for pid in pod.pids()} == {
        late.name
    }


def test_resume_lets_go_but_for_what_another_process_had_stopped(bench: Bench) -> None:
    pod = bench.pod("a")
    hung = max(pod.pids())
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: state_of(hung) == "T")
    bench.order(Verb.STOP)
    ack = bench.order(Verb.RESUME, "2")
    assert ack is not None
    assert (ack.result, ack.processes) == (AckResult.DONE, 2)
    wait_until(lambda: pod.states().count("T") == 1)
    assert state_of(hung) == "T"


def test_a_stop_that_no_kill_follows_ends_by_itself(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.now_s += 9.9
    bench.executor.expire()
    assert pod.states() == "TTT"
    bench.now_s += 0.2
    bench.executor.expire()
    wait_until(lambda: "T" not in pod.states())
    assert "resumed" in bench.said[0]


def test_a_restarted_agent_lets_go_in_time_and_does_nothing_twice(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.executor = bench.new_executor()
    (gang,) = bench.registry.gangs()
    assert bench.executor.is_stopped_by_us(gang)
    assert [ack.order for ack in bench.executor.acks(gang)] == ["1"]
    bench.now_s += 11
    bench.executor.expire()
    wait_until(lambda: "T" not in pod.states())
    bench.now_s -= 11
    assert bench.order(Verb.STOP) is None
    assert "T" not in pod.states()


def test_a_restarted_agent_kills_what_the_one_before_stopped(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.executor = bench.new_executor()
    ack = bench.order(Verb.KILL, "2")
    assert ack is not None
    assert ack.result is AckResult.DONE
    wait_until(lambda: not pod.pids())


def test_only_pods_that_are_being_deleted_are_killed_and_later_ones_when_they_are(
    bench: Bench,
) -> None:
    going, staying = bench.pod("a", containers=("main", "log")), bench.pod("b")
    going.deleting = True
    bench.registry.on_pod(going.event())
    ack = bench.order(Verb.KILL_TERMINATING)
    assert ack is not None
    assert (ack.result, ack.processes) == (AckResult.PARTIAL, 2)
    assert ack.pods == (going.uid,)
    wait_until(lambda: not going.pids())
    assert len(staying.pids()) == 3
    staying.deleting = True
    bench.registry.on_pod(staying.event())
    bench.executor.repeat()
    assert (bench.acks[-1].result, bench.acks[-1].processes) == (AckResult.DONE, 3)
    assert bench.acks[-1].pods == tuple(sorted((going.uid, staying.uid)))
    wait_until(lambda: not staying.pids())


def test_the_sandbox_of_a_pod_is_not_stopped(bench: Bench) -> None:
    pod = FakePod(bench.root, "a")
    bench.pods.append(pod)
    sandbox = pod.add("sandbox", known=False)
    # starts are counted in ticks of the clock
    time.sleep(0.05)
    pod.add("main")
    bench.registry.on_pod(pod.event())
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.processes == 3
    pod.deleting = True
    bench.registry.on_pod(pod.event())
    bench.order(Verb.KILL_TERMINATING, "2")
    wait_until(lambda: pod.pids() == cgroups.processes(sandbox))
    assert pod.states().count("T") == 0


def test_a_container_that_the_api_has_not_reported_yet_is_stopped_too(bench: Bench) -> None:
    pod = bench.pod("a")
    pod.add("new", known=False)
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.processes == 6


NOT_OBEYED: dict[str, dict[str, Any]] = {
    "in another phase": {"phase": "Decided"},
    "before there is a phase": {"phase": ""},
    "in another namespace": {"namespace": "elsewhere"},
    "for another gang": {"selector": {LABEL: "another"}},
    "for everything of a label that is no gang": {"selector": {"app": "x"}},
    "too late": {"expires_s": NOW_S - 1},
    "for pods that came later": {"created_before_s": NOW_S - 7200},
}


@pytest.mark.parametrize("other", NOT_OBEYED.values(), ids=NOT_OBEYED.keys())
def test_an_order_that_is_not_obeyed_stops_nothing(other: dict[str, Any], bench: Bench) -> None:
    pod = bench.pod("a")
    assert bench.order(Verb.STOP, "1", **other) is None
    assert "T" not in pod.states()


def test_pods_of_another_node_are_not_ours(bench: Bench) -> None:
    pod = bench.pod("a")
    pod.node = "node2"
    bench.registry.on_pod(pod.event())
    assert bench.order(Verb.STOP) is None
    assert "T" not in pod.states()


def test_without_a_disk_nothing_is_done(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.folder.joinpath("orders.draft").mkdir()
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.result is AckResult.REFUSED
    assert "cannot write" in (ack.text or "")
    assert "T" not in pod.states()


def test_what_is_being_deleted_is_killed_without_a_disk(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.folder.joinpath("orders.draft").mkdir()
    pod.deleting = True
    bench.registry.on_pod(pod.event())
    ack = bench.order(Verb.KILL_TERMINATING)
    assert ack is not None
    assert (ack.result, ack.pods) == (AckResult.DONE, (pod.uid,))
    wait_until(lambda: not pod.pids())


def test_no_kill_of_a_replaced_gang_waits_for_its_evidence(bench: Bench) -> None:
    pod = bench.pod("a")
    begun, done = keep_evidence_for(bench, 60)
    ack = bench.order(Verb.SNAPSHOT)
    assert ack is not None
    assert (ack.result, ack.bundle) == (AckResult.DONE, "/bundle")
    assert begun.wait(10)
    assert "T" not in pod.states()
    ack = bench.order(Verb.KILL_TERMINATING, "2")
    assert ack is not None
    assert ack.result is AckResult.PARTIAL
    pod.deleting = True
    bench.registry.on_pod(pod.event())
    bench.executor.repeat()
    wait_until(lambda: not pod.pids())
    assert not done.is_set()
    assert bench.acks[-1].bundle is None, "what is killed is kept by the order before"


def test_a_pod_without_processes_here_is_not_reported_as_killed(bench: Bench) -> None:
    pod = bench.pod("a", containers=())
    pod.deleting = True
    bench.registry.on_pod(pod.event())
    ack = bench.order(Verb.KILL_TERMINATING)
    assert ack is not None
    assert ack.pods == ()


def test_the_thread_lets_go_without_being_asked(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.now_s += 11
    thread = threading.Thread(target=bench.executor.run)
    thread.start()
    wait_until(lambda: "T" not in pod.states())
    bench.executor.close()
    thread.join(20)
    assert not thread.is_alive()


def test_an_agent_that_is_asked_to_end_leaves_no_process_stopped(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.executor.close()
    thread = threading.Thread(target=bench.executor.run)
    thread.start()
    thread.join()
    wait_until(lambda: "T" not in pod.states())
    ack = bench.order(Verb.KILL, "2")
    assert ack is not None
    assert ack.result is AckResult.REFUSED


def test_a_disk_that_fills_up_keeps_no_process_stopped(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.folder.joinpath("orders.draft").mkdir()
    bench.now_s += 11
    bench.executor.expire()
    wait_until(lambda: "T" not in pod.states())
    (gang,) = bench.registry.gangs()
    assert not bench.executor.is_stopped_by_us(gang)


def test_a_resume_is_obeyed_without_a_disk(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.folder.joinpath("orders.draft").mkdir()
    ack = bench.order(Verb.RESUME, "2")
    assert ack is not None
    assert (ack.result, ack.processes) == (AckResult.DONE, 3)
    wait_until(lambda: "T" not in pod.states())


def keep_evidence_for(bench: Bench, seconds: float) -> tuple[threading.Event, threading.Event]:
    """Evidence takes so long to write: the event that it was begun, and one that ends it early."""
    begun, done = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        done.wait(seconds)

    bench.executor._listeners = replace(
        bench.executor._listeners, evidence=lambda _: BundleWriter("/bundle", write)
    )
    return begun, done


def test_an_agent_that_ends_while_it_keeps_evidence_leaves_no_process_stopped(bench: Bench) -> None:
    """The order thread is not waited for: what follows is done by the thread that ends the agent."""
    pod = bench.pod("a")
    begun, done = keep_evidence_for(bench, 20)
    bench.order(Verb.STOP)
    assert begun.wait(10)
    assert pod.states() == "TTT"
    bench.folder.joinpath("orders.draft").mkdir()
    bench.executor.close()
    wait_until(lambda: "T" not in pod.states())
    done.set()


def test_a_kill_waits_for_the_evidence_until_its_time_is_up_and_for_no_disk(
    bench: Bench,
) -> None:
    pod = bench.pod("a")
    begun, done = keep_evidence_for(bench, 60)
    bench.order(Verb.STOP)
    assert begun.wait(10)
    bench.folder.joinpath("orders.draft").mkdir()
    began_s = time.monotonic()
    ack = bench.order(Verb.KILL, "2")
    assert time.monotonic() - began_s >= BUNDLE_LIMIT_S / 2
    assert ack is not None
    assert (ack.result, ack.processes) == (AckResult.DONE, 1)
    wait_until(lambda: not pod.pids())
    assert not done.is_set()
    done.set()


def test_a_process_that_cannot_be_pinned_for_another_reason_stops_no_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = bench.pod("a")
    opened, last = os.pidfd_open, max(pod.pids())

    def pidfd_open(pid: int) -> int:
        if pid == last:
            raise OSError(errno.EIO, "Input/output error")
        return opened(pid)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", pidfd_open)
        ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.result is AckResult.REFUSED
    bench.now_s += 11
    bench.executor.expire()
    wait_until(lambda: "T" not in pod.states())


def test_snapshot__keeps_evidence_and_touches_nothing(bench: Bench) -> None:
    pod = bench.pod("a")
    assert bench.order(Verb.SNAPSHOT, phase="Recovered") is None
    ack = bench.order(Verb.SNAPSHOT, phase="Observed")
    assert ack is not None
    assert (ack.result, ack.processes, ack.bundle) == (AckResult.DONE, 0, "/bundle")
    assert "T" not in pod.states()
    assert bench.order(Verb.SNAPSHOT, phase="Observed") is None, "once"
    assert bench.order(Verb.STOP, "2", phase="Observed") is None, "nothing else is obeyed there"
    refused = bench.order(Verb.SNAPSHOT, "3", phase="Refused")
    assert refused is not None
    assert refused.bundle == "/bundle"
