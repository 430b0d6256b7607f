"""The order to save, carried out on real processes: only a rank that handles the signal gets it."""

from __future__ import annotations

import pytest

from kcover_ebpf.api.fault_report import AckResult
from kcover_ebpf.api.order import SaveSignal, Verb

from .order_bench import Bench, wait_until
from .pods import FakePod

pytestmark = pytest.mark.needs("root", "cgroup2")
_SAVES = """
import os, signal, time
if os.fork() == 0:  # the rank
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"saved\\n"))
    if os.fork() == 0:  # a loader: it has the handler of the rank
        os.write(1, b"up\\n")
while True: time.sleep(0.01)
"""


def _started(bench: Bench, name: str) -> tuple[FakePod, int]:
    """A pod, and its rank: the child of PID 1 in it."""
    pod = FakePod(bench.root, name)
    pod.add("main", program=_SAVES)
    bench.pods.append(pod)
    bench.registry.on_pod(pod.event())
    return pod, sorted(pod.pids())[1]


def _said(pod: FakePod) -> bytes:
    stream = pod.leaders[0].stdout
    assert stream is not None
    return stream.readline()


def test_a_rank_that_handles_the_signal_gets_it_once_and_no_other_process(bench: Bench) -> None:
    pod, rank = _started(bench, "a")
    spared, other = _started(bench, "b")
    bench.ranks = {rank, other, min(pod.pids())}  # PID 1 has no handler: it would die
    ack = bench.order(Verb.SAVE, signal=SaveSignal.USR1, spared=(spared.uid,))
    assert ack is not None
    assert (ack.verb, ack.result, ack.processes) == (Verb.SAVE, AckResult.DONE, 1)
    assert _said(pod) == b"saved\n"
    assert (len(pod.pids()), len(spared.pids())) == (3, 3), "none has died of it"
    assert bench.order(Verb.SAVE, signal=SaveSignal.USR1) is None, "once"
    ack = bench.order(Verb.SAVE, "2", signal=SaveSignal.USR2)
    assert ack is not None
    assert ack.processes == 0, "no rank handles that one"


def test_a_save_is_followed_by_a_stop_as_any_restart(bench: Bench) -> None:
    pod, rank = _started(bench, "a")
    bench.ranks = {rank}
    bench.order(Verb.SAVE, signal=SaveSignal.USR1)
    assert _said(pod) == b"saved\n"
    ack = bench.order(Verb.STOP, "2")
    assert ack is not None
    assert ack.result is AckResult.DONE
    wait_until(lambda: pod.states() == "TTT")


def test_an_order_to_save_without_a_signal_is_refused(bench: Bench) -> None:
    _started(bench, "a")
    ack = bench.order(Verb.SAVE)
    assert ack is not None
    assert (ack.result, ack.text) == (AckResult.REFUSED, "the Save order has no signal")
