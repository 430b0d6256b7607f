"""Ten thousand threads, descriptors and connections; records and samples that find no room."""

import os
from collections import Counter
from dataclasses import replace

import pytest

from kcover_ebpf.facts.kernel import ProcessTotals, SocketSample, ThreadSample, Tick
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel import sampler
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from tests.kernel.helpers import CLOSELY, EACH_PASS, FIRINGS, of_kind, program, running, watch

MANY = 10_000
CONNECTIONS = 4_000


@pytest.mark.alone
def test_ten_thousand_threads_are_sampled_in_one_pass(kernel: KernelSampler) -> None:
    with running(program("crowd"), "threads", str(MANY)) as target:
        if (made := int(target.line())) < MANY:
            pytest.skip(f"needs threads: this machine gives {made} to a process")
        watch(kernel, target.pid)
        first = kernel.sample([])
        kernel.request(target.pid, EACH_PASS)
        samples = of_kind(first, ThreadSample)
        assert Counter(Counter(one.tid for one in samples).values()) == {1: MANY + 1}
        second = kernel.sample([])
        kernel.request(target.pid, CLOSELY)
        third = kernel.sample([])
    for facts in (first, second, third):
        assert of_kind(facts, ProcessTotals)[0].thread_count == MANY + 1
        assert of_kind(facts, Tick)[0].lost_count == 0
    # the first thread may only have fallen asleep between the two
    assert {one.tid for one in of_kind(second, ThreadSample)} <= {target.pid}
    # More than fits into the iterator's buffer at once: the kernel calls twice where it was full.
    assert {one.tid for one in of_kind(third, ThreadSample)} == {one.tid for one in samples}
    assert of_kind(third, ProcessTotals)[0].cpu_ns < 100_000_000


def test_ten_thousand_descriptors_hide_no_thread_and_are_no_sockets(kernel: KernelSampler) -> None:
    with running(program("crowd"), "files", str(MANY)) as target:
        assert int(target.line()) == MANY
        kernel.watch(target.pid)
        facts = kernel.sample([target.pid])
    assert of_kind(facts, SocketSample) == []
    assert {sample.pid for sample in of_kind(facts, ThreadSample)} == {target.pid}


def test_thousands_of_connections_are_sent_once_each(kernel: KernelSampler) -> None:
    with running(program("crowd"), "sockets", str(CONNECTIONS)) as target:
        assert int(target.line()) == CONNECTIONS
        kernel.watch(target.pid)
        first: list[SocketSample] = []
        while len(first) < 2 * CONNECTIONS + 1:
            # a pass takes a part of them
            part = of_kind(kernel.sample([target.pid]), SocketSample)
            assert part
            first += part
        second = kernel.sample([target.pid])
    assert Counter(Counter(one.inode for one in first).values()) == {1: 2 * CONNECTIONS + 1}
    assert Counter(one.state for one in first) == {"ESTABLISHED": 2 * CONNECTIONS, "LISTEN": 1}
    assert of_kind(second, SocketSample) == []
    assert of_kind(second, Tick)[0].lost_count == 0


def test_lost_records_are_counted() -> None:
    settings = replace(Settings(), ring_bytes=os.sysconf("SC_PAGE_SIZE"))
    rounds = 10 * FIRINGS
    with (
        KernelSampler.open(settings) as kernel,
        running(program("repeat"), str(rounds), program("exits"), "0") as parent,
    ):
        assert parent.line() == "ready"
        kernel.watch(parent.pid)
        kernel.sample([])
        parent.say()
        assert len(parent.rest()) == rounds
        parent.wait()
        reported = 0
        while facts := kernel.wait(0.1):
            reported += len(facts)
        lost = of_kind(kernel.sample([]), Tick)[0].lost_count
        assert of_kind(kernel.sample([]), Tick)[0].lost_count == 0, "each loss is reported once"
    assert reported > 0
    assert lost > 0
    assert reported + lost == 3 * rounds + 1, "fork, exec and exit of each, and the parent's exit"


def test_threads_beyond_the_capacity_are_counted() -> None:
    settings = replace(Settings(), max_threads=100)
    with (
        KernelSampler.open(settings) as kernel,
        running(program("crowd"), "threads", "199") as target,
    ):
        target.line()
        watch(kernel, target.pid)
        facts = kernel.sample([])
        assert len(of_kind(facts, ThreadSample)) == 100
        assert of_kind(facts, Tick)[0].lost_count == 100


def test_threads_of_the_dead_and_the_unwatched_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SWEEP_PAUSE_NS", 0)  # on a busy machine it is longer than a round
    settings = replace(Settings(), max_threads=100)
    with KernelSampler.open(settings) as kernel:
        for _ in range(3):
            with running(program("crowd"), "threads", "79") as target:
                target.line()
                watch(kernel, target.pid)
                facts = kernel.sample([])
                assert len(of_kind(facts, ThreadSample)) == 80
                assert of_kind(facts, Tick)[0].lost_count == 0
                kernel.unwatch(target.pid)
                kernel.sample([])
            with running(program("crowd"), "threads", "79") as target:
                target.line()
                watch(kernel, target.pid)
                assert of_kind(kernel.sample([]), Tick)[0].lost_count == 0


def test_processes_beyond_the_capacity_are_counted(kernel: KernelSampler) -> None:
    # Numbers no process has; the table cannot know.
    for number in range(16_384 + FIRINGS):
        kernel.watch(Pid(2**22 + number))
    assert of_kind(kernel.sample([]), Tick)[0].lost_count == FIRINGS
