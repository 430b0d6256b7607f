"""What is stopped by an order runs again when the agent is gone, however it ended, or is stuck."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from pathlib import Path

import pytest

from kcover_ebpf.agent.orders import resumer
from kcover_ebpf.agent.orders.resumer import Resumer
from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.order import Verb
from kcover_ebpf.errors import ActionError
from kcover_ebpf.host import capabilities, procfs

from .helpers import state_of
from .order_bench import Bench, wait_until

_SYS_RESOURCE = 24
pytestmark = pytest.mark.needs("root", "cgroup2")


def agent(bench: Bench) -> int:
    """A process that is an agent: it stops the gang, and then does nothing more."""
    pid = os.fork()
    if pid == 0:
        try:
            bench.executor = bench.new_executor()
            for number in range(1, 9):  # refused where the machine is too busy to start the resumer
                ack = bench.order(Verb.STOP, str(number))
                if ack is not None and ack.result is AckResult.DONE:
                    break
            while True:
                signal.pause()
        finally:
            os._exit(1)
    return pid


@pytest.mark.parametrize("size", [1, 40], ids=["one pod", "more than one packet"])
def test_ranks_run_again_when_the_agent_is_killed(bench: Bench, size: int) -> None:
    pod = bench.pod("a", containers=[f"c{number}" for number in range(size)])
    if size > 1:
        for leader in pod.leaders:
            leader.poll()
    hung = max(pod.pids())
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: state_of(hung) == "T")
    pid = agent(bench)
    wait_until(lambda: pod.states() == "T" * 3 * size)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: pod.states().count("T") == 1)
    assert state_of(hung) == "T", "another process had stopped it before"
    os.kill(hung, signal.SIGCONT)


def test_ranks_run_again_when_the_agent_is_stuck(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumer, "LONGEST_STOP_S", 1.0)
    pod = bench.pod("a")
    pid = agent(bench)
    wait_until(lambda: pod.states() == "TTT")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "T" not in pod.states())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_what_was_resumed_in_time_is_not_resumed_again(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.order(Verb.STOP)
    bench.order(Verb.RESUME, "2")
    wait_until(lambda: "T" not in pod.states())
    hung = max(pod.pids())
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: state_of(hung) == "T")
    bench.resumer.close()
    assert bench.resumer.pid is None
    time.sleep(0.2)
    assert state_of(hung) == "T"


def test_a_resumer_that_died_is_started_again(bench: Bench) -> None:
    pod = bench.pod("a")
    bench.resumer.start()
    first = bench.resumer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: procfs.task_state(first) in ("Z", ""))
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert (ack.result, pod.states()) == (AckResult.DONE, "TTT")
    assert bench.resumer.pid not in (None, first)


def test_a_resumer_that_died_while_ranks_are_stopped_is_replaced_by_one_that_holds_them(
    bench: Bench,
) -> None:
    pod = bench.pod("a", containers=[f"c{number}" for number in range(40)])
    numbers = count(1)

    def has_stopped() -> bool:
        # on a busy machine some of so many are not stopped in time, so the order is given again
        ack = bench.order(Verb.STOP, str(next(numbers)))
        return ack is not None and ack.result is AckResult.DONE

    wait_until(has_stopped)
    first = bench.resumer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: procfs.task_state(first) in ("Z", ""))
    bench.resumer.tend()
    second = bench.resumer.pid
    assert second not in (None, first)
    assert procfs.task_state(first) == "", "it was waited for"
    assert pod.states() == "T" * 120
    # as if the agent were gone: its end of the socket closes
    bench.resumer.close()
    wait_until(lambda: "T" not in pod.states())


def test_tend__one_that_was_never_started_is_not_started(bench: Bench) -> None:
    bench.resumer.tend()
    assert bench.resumer.pid is None


def test_without_a_resumer_no_process_is_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = bench.pod("a")
    monkeypatch.setattr("sys.executable", "/no/such/python")
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.result is AckResult.REFUSED
    assert "the process that would resume them does not start" in (ack.text or "")
    assert "T" not in pod.states()


def test_a_resumer_has_one_capability_and_no_files_but_its_socket(bench: Bench) -> None:
    bench.resumer.start()
    pid = bench.resumer.pid
    status = Path(f"/proc/{pid}/status").read_text()
    words = {
        line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.split()[1:]
    }
    assert int(words["CapPrm"], 16) == int(words["CapEff"], 16) == 1 << 5
    assert words["NoNewPrivs"] == "1"
    links = [os.fspath(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert sorted({link.partition(":")[0] for link in links}) == ["/dev/null", "socket"]
    score = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    assert score == (-1000 if _SYS_RESOURCE in capabilities.effective() else 0)
    wait_until(lambda: procfs.task_state(pid or 0) == "S")


def test_hold__a_process_that_is_gone_keeps_no_other_stopped() -> None:
    holder = Resumer()
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    alive = os.fork()
    if alive == 0:
        while True:
            signal.pause()
    pinned = {pid: os.pidfd_open(pid) for pid in (gone, alive)}
    os.waitpid(gone, 0)
    os.kill(alive, signal.SIGSTOP)
    holder.hold("i", pinned)
    wait_until(lambda: state_of(alive) == "T")
    holder.close()
    wait_until(lambda: state_of(alive) == "S")
    os.kill(alive, signal.SIGKILL)
    os.waitpid(alive, 0)
    for descriptor in pinned.values():
        os.close(descriptor)
    with pytest.raises(ActionError):
        holder.hold("i", {alive: -1})
    holder.close()
