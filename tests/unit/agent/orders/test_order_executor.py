"""The thread that carries out orders: what it survives, and what it reports. No process is signalled here."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent.containers import Containers
from kcover_ebpf.agent.orders import stop_and_kill
from kcover_ebpf.agent.orders.evidence_thread import BundleWriter
from kcover_ebpf.agent.orders.order_executor import OrderExecutor
from kcover_ebpf.agent.orders.order_journal import (
    ContainerRef,
    OrderJournal,
    ProcessRef,
    StopRecord,
)
from kcover_ebpf.agent.orders.order_listeners import Listeners
from kcover_ebpf.agent.pod_registry import PodRegistry, key_of
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.api.order import Order, OrderedIncident, Verb
from kcover_ebpf.errors import ActionError
from kcover_ebpf.host import terminate
from tests.unit.support.fake_holder import FakeHolder

NOW_S = 1000.0
GANG = Gang(GangId.of("team", {"job": "train"}), "train", "PyTorchJob")


def order(number: str, verb: Verb = Verb.STOP) -> Order:
    return Order(number, verb, GANG.id.labels, NOW_S, NOW_S + 10)


def executor(journal: OrderJournal, folder: Path, said: list[str] | None = None) -> OrderExecutor:
    reported = [] if said is None else said
    listeners = Listeners(
        acked=lambda _gang, _ack: None,
        killed=lambda _gang: None,
        evidence=lambda _: BundleWriter("/bundle", lambda: None),
        before_stop=lambda _: None,
        passed_over=reported.append,
        ranks=lambda _: (),
    )
    return OrderExecutor(
        PodRegistry("n"), Containers([folder]), journal, listeners, FakeHolder(), lambda: NOW_S
    )


def test_order_executor__a_restarted_agent_reports_no_more_acks_than_the_schema_admits(
    tmp_path: Path,
) -> None:
    journal = OrderJournal(tmp_path / "orders.json")
    for number in range(12):
        journal.begin(order(str(number)), key_of(GANG))
        journal.finish(Ack(str(number), Verb.STOP, AckResult.DONE, 8))
    again = executor(OrderJournal(tmp_path / "orders.json"), tmp_path)
    assert [ack.order for ack in again.acks(GANG)] == [str(number) for number in range(4, 12)]


def stopped(folder: Path, until_s: float, *, finished: bool = True) -> OrderJournal:
    """A book with two gangs that are stopped, on a disk that is full from now on."""
    journal = OrderJournal(folder / "orders.json")
    for number in ("1", "2"):
        record = StopRecord(f"i{number}", f"team/{number}", until_s, (ContainerRef("u", number),))
        journal.begin(order(number), record.gang, record)
        if finished:
            journal.finish(Ack(number, Verb.STOP, AckResult.DONE, 1))
    journal = OrderJournal(folder / "orders.json")
    (folder / "orders.draft").mkdir()
    return journal


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was resumed."""
    calls: list[object] = []

    def resume(found: object, keep: object = ()) -> stop_and_kill.StopOutcome:
        calls.append((found, keep))
        return stop_and_kill.StopOutcome(0)

    monkeypatch.setattr(stop_and_kill, "resume", resume)
    return calls


def running(made_executor: OrderExecutor) -> threading.Thread:
    thread = threading.Thread(target=made_executor.run, daemon=True)
    thread.start()
    return thread


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "interrupted"])
def test_order_executor__stops_expire_on_a_full_disk(
    tmp_path: Path, resumed: list[object], finished: bool
) -> None:
    journal = stopped(tmp_path, NOW_S - 1, finished=finished)
    made = executor(journal, tmp_path)
    thread = running(made)
    # the journal forgets a stop a moment before the executor does
    wait_until(lambda: not journal.stops and not made._stopped)
    assert len(resumed) == 2
    assert thread.is_alive()
    made.close()
    thread.join(5)
    assert not thread.is_alive()


def test_order_executor__one_gang_that_cannot_be_resumed_keeps_no_other_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    done: list[object] = []

    def resume(found: object, keep: object = ()) -> stop_and_kill.StopOutcome:
        done.append(found)
        if len(done) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return stop_and_kill.StopOutcome(0)

    monkeypatch.setattr(stop_and_kill, "resume", resume)
    made = executor(stopped(tmp_path, NOW_S - 1), tmp_path, said)
    made.expire()
    assert made._stopped == {"team/1"}
    assert "Too many open files" in said[0]
    made.expire()
    assert made._stopped == frozenset()


def test_order_executor__an_agent_that_ends_resumes_all_in_the_main_thread(
    tmp_path: Path, resumed: list[object]
) -> None:
    """The order thread may be busy with evidence, and nothing waits for it."""
    journal = stopped(tmp_path, NOW_S + 9)
    made = executor(journal, tmp_path)
    made.close()
    assert len(resumed) == 2
    assert journal.stops == {}


def test_order_executor__no_error_ends_the_order_thread(tmp_path: Path) -> None:
    said: list[str] = []
    made = executor(OrderJournal(tmp_path / "orders.json"), tmp_path, said)
    thread = running(made)
    broken: Any = OrderedIncident("team", "broken", "u", "ShuttingDown", None)
    object.__setattr__(broken, "order", object())
    made.hear(broken)
    wait_until(lambda: bool(said))
    assert said[0].startswith("cannot execute the order of incident broken: AttributeError")
    began_s = made.turn_s
    wait_until(lambda: made.turn_s > began_s)
    assert thread.is_alive()
    made.close()
    thread.join(5)


def test_order_executor__a_resume_does_not_depend_on_the_disk(
    tmp_path: Path, resumed: list[object]
) -> None:
    journal = stopped(tmp_path, NOW_S + 9)
    made = executor(journal, tmp_path)
    resume = order("3", Verb.RESUME)
    made._carry_out(OrderedIncident("team", "i", "i1", "", resume), resume, GANG, ())
    assert len(resumed) == 1
    assert set(journal.stops) == {"i2"}
    (ack,) = made.acks(GANG)
    assert ack.result is AckResult.DONE
    assert journal.knows("3")


def test_order_executor__nothing_is_stopped_once_the_agent_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_and_kill, "stop", lambda *_: pytest.fail("stopped"))
    made = executor(OrderJournal(tmp_path / "orders.json"), tmp_path)
    made.close()
    stop = order("1")
    with pytest.raises(ActionError, match="the agent is shutting down"):
        made._stop(OrderedIncident("team", "i", "i1", "", stop), stop, GANG, ())


def test_send__a_leader_that_is_gone_while_its_session_lives_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pidfd_open of Linux 5.10 to 6.14 says EINVAL there, not ESRCH."""
    with subprocess.Popen(["sleep", "60"]) as child:
        gone, opened = child.pid - 1, os.pidfd_open

        def pidfd_open(pid: int) -> int:
            if pid == gone:
                raise OSError(errno.EINVAL, "Invalid argument")
            return opened(pid)

        monkeypatch.setattr(os, "pidfd_open", pidfd_open)
        terminate.send(lambda: {gone, child.pid}, {gone, child.pid}, signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL


def test_order_executor__a_stop_that_is_given_anew_takes_nothing_of_ours_for_stopped_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods move while the others stay stopped: what we stopped ourselves is let go with the rest at the end."""
    journal = OrderJournal(tmp_path / "orders.json")
    theirs = ProcessRef(7, 70)
    record = StopRecord("i", key_of(GANG), NOW_S + 5, (ContainerRef("u", "c"),), (theirs,))
    journal.begin(order("1"), record.gang, record)
    obeys = executor(journal, tmp_path)
    monkeypatch.setattr(stop_and_kill, "stop", lambda *_: stop_and_kill.StopOutcome(2))
    monkeypatch.setattr(stop_and_kill, "already_stopped", lambda _: [7, 8])
    incident = OrderedIncident("team", "i", "i", Phase.SHUTTING_DOWN.value, order("2"))
    obeys._stop(incident, order("2"), GANG, ())
    kept = journal.stops["i"]
    assert kept.already_stopped == (theirs,)
    assert kept.containers == record.containers, "its pod may be gone before its processes are"
    assert kept.until_s == order("2").expires_s
    assert obeys.acks(GANG)[-1].bundle is None, "there is evidence of the first stop"
