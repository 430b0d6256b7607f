"""Lead threads in every pass, all threads in turns, and never for long without a return to user space."""

import os
import time
from itertools import pairwise

import pytest

from kcover_ebpf.facts.kernel import (
    CALM_EVERY,
    Detail,
    Fact,
    ProcessTotals,
    SampleRequest,
    ThreadSample,
)
from kcover_ebpf.host import cgroups
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import CLOSELY, EACH_PASS, of_kind, program, running, waiting, watch

MOST_WORK, STRANGERS_EVERY = 1600, 4
"""As in bpf/pass.bpf.h."""


def whole_passes(kernel: KernelSampler, pid: Pid, count: int) -> list[int]:
    """The numbers of those of the next passes that visited all threads of a process."""
    passes = (of_kind(kernel.sample([]), ProcessTotals) for _ in range(count))
    return [number for number, pass_ in enumerate(passes) if pid in {one.pid for one in pass_}]


def spaced(kernel: KernelSampler, count: int) -> list[list[Fact]]:
    """Passes between which a thread that spins gets a CPU."""
    found = []
    for _ in range(count):
        found.append(kernel.sample([]))
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("every", [1, 4, CALM_EVERY])
def test_all_threads_have_their_turn(kernel: KernelSampler, every: int) -> None:
    with running(program("crowd"), "threads", "23") as target:
        target.line()
        watch(kernel, target.pid, SampleRequest(every=every))
        found = whole_passes(kernel, target.pid, 3 * every + 1)
        totals = of_kind(kernel.sample([]), ProcessTotals) if every == 1 else []
    assert found[0] == 0, "at first sight"
    turns = found[-3:]
    assert [after - before for before, after in pairwise(turns)] == [every] * 2
    assert [one.thread_count for one in totals] == ([24] if every == 1 else [])


def test_a_lead_thread_is_sampled_in_every_pass(kernel: KernelSampler) -> None:
    with running(program("works"), "cpu", "20") as target:
        kernel.watch(target.pid)
        kernel.sample([])
        seen = []
        for _ in range(CALM_EVERY):
            target.work()
            seen += of_kind(kernel.sample([]), ThreadSample)
    assert [one.tid for one in seen] == [Tid(target.pid)] * CALM_EVERY


@pytest.mark.parametrize("named", [True, False])
def test_a_thread_is_sampled_often_only_if_it_is_named_as_lead(
    kernel: KernelSampler, named: bool
) -> None:
    with waiting("spin") as (target, tids):
        watch(kernel, target.pid, SampleRequest(lead=tids["spin"] if named else None))
        kernel.sample([])
        passes = [of_kind(one, ThreadSample) for one in spaced(kernel, CALM_EVERY)]
    seen = sum(tids["spin"] in {one.tid for one in pass_} for pass_ in passes)
    assert (seen > 1) is named


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        (Detail.OFF, {"main", "vfork", "spin"}),
        (Detail.ON, {"main", "vfork", "spin"}),
        (Detail.ALL, {"main", "vfork", "spin", "futex", "poll"}),
    ],
)
def test_at_first_sight_those_are_sent_that_are_judged(
    kernel: KernelSampler, detail: Detail, expected: set[str]
) -> None:
    with waiting("futex", "poll", "vfork", "spin") as (target, tids):
        names = {tid: kind for kind, tid in tids.items()} | {target.pid: "main"}
        watch(kernel, target.pid, SampleRequest(detail, every=1))
        samples = of_kind(kernel.sample([]), ThreadSample)
    assert {names.get(one.tid, "child") for one in samples} - {"child"} == expected


def test_when_detail_begins_those_are_sent_that_are_judged(kernel: KernelSampler) -> None:
    with waiting("futex", "vfork") as (target, tids):
        watch(kernel, target.pid, EACH_PASS)
        kernel.sample([])
        assert of_kind(kernel.sample([]), ThreadSample) == []
        kernel.request(target.pid, SampleRequest(Detail.ON, every=4))
        begin, then = (of_kind(kernel.sample([]), ThreadSample) for _ in range(2))
        kernel.request(target.pid, CLOSELY)
        every = of_kind(kernel.sample([]), ThreadSample)
    assert {one.tid for one in begin if one.pid == target.pid} == {target.pid, tids["vfork"]}
    assert then == []
    assert {one.tid for one in every if one.pid == target.pid} == {target.pid, *tids.values()}


def test_the_sample_before_is_known(kernel: KernelSampler) -> None:
    with waiting("spin") as (target, tids):
        kernel.watch(target.pid)
        passes = spaced(kernel, 3 * CALM_EVERY)
    turns = [one.boottime_ns for pass_ in passes for one in of_kind(pass_, ProcessTotals)]
    samples = [one for pass_ in passes for one in of_kind(pass_, ThreadSample)]
    seen = {one.boottime_ns: one.previous_ns for one in samples if one.tid == tids["spin"]}
    befores = dict(zip(turns, [0, *turns], strict=False))
    assert len(seen) > 1
    assert seen == {at_ns: befores[at_ns] for at_ns in seen}


def test_threads_that_nothing_can_wake_are_counted(kernel: KernelSampler) -> None:
    with waiting("futex", "poll") as (target, _tids):
        watch(kernel, target.pid, EACH_PASS)
        for _ in range(2):
            found = of_kind(kernel.sample([]), ProcessTotals)[0]
            assert (found.thread_count, found.forsaken_count) == (3, 1)


@pytest.mark.parametrize("wanted", [SampleRequest(), CLOSELY])
def test_no_call_of_the_iterator_works_for_long(
    kernel: KernelSampler, wanted: SampleRequest
) -> None:
    sampler = kernel._threads
    with running(program("crowd"), "threads", "2300") as target:
        target.line()
        watch(kernel, target.pid, wanted)
        works = [sampler.state().work for _ in sampler.run(is_whole=True)]
        again = [sampler.state().work for _ in sampler.run(is_whole=True)]
        totals = [
            one for _ in range(CALM_EVERY) for one in of_kind(kernel.sample([]), ProcessTotals)
        ]
    assert max(works + again) <= MOST_WORK + 16, "a sample more, and the process around it"
    if not sampler.visits_all:
        assert len(works) >= 2300 * 8 // MOST_WORK
        # how many more threads the host has by now is a matter of other tests
        assert 2 <= len(again) < len(works) / 2
    assert {one.thread_count for one in totals} == {2301}


def strangers_soon(kernel: KernelSampler) -> tuple[int, int]:
    """What the passes found after each process of the host had its turn."""
    for _ in range(STRANGERS_EVERY):
        kernel.sample([])
    return kernel.strangers


def test_a_process_that_joins_a_watched_group_is_seen_soon(kernel: KernelSampler) -> None:
    group = cgroups.make_for_job("kcover-strangers", os.getpid())
    if group is None:
        pytest.skip("needs cgroup2: no writable hierarchy is mounted")
    with (
        running(program("crowd"), "threads", "1") as member,
        running(program("crowd"), "threads", "1") as other,
    ):
        (group / "cgroup.procs").write_text(str(member.pid))
        kernel.watch(member.pid)
        seen = []
        for pid in (None, other.pid):
            if pid is not None:
                (group / "cgroup.procs").write_text(str(pid))
            seen.append(strangers_soon(kernel))
        kernel.watch(other.pid)
        seen.append(strangers_soon(kernel))
    cgroups.remove(group)
    assert seen == [(0, 0), (1, other.pid), (0, 0)]
