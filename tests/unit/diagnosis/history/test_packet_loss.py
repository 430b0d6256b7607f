"""Links that lose packets while the job continues."""

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.history.packet_loss import LossWatch, NarrowLink
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.judge.slow_job import slowness
from kcover_ebpf.facts.kernel import TcpRetransmit
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.link_builders import mesh
from tests.unit.support.scripted_job import Stage, all_wait, trained


def lossy_watch(
    views: dict[Pid, ProcessHistory], pairs: list[tuple[int, int]], seconds: int, per_s: int = 8
) -> LossWatch:
    watch = LossWatch()
    for step in range(seconds * per_s):
        for pid, other in pairs:
            watch.observe(again(views, pid, other, step * NS // per_s), views)
    return watch


def again(views: dict[Pid, ProcessHistory], pid: int, other: int, now_ns: int) -> TcpRetransmit:
    sample = views[Pid(pid)].sockets[other]
    return TcpRetransmit(now_ns, Pid(pid), sample.local, sample.remote)


@pytest.mark.parametrize(
    ("pairs", "rank"),
    [
        ([(100, 102), (102, 101), (103, 102)], 102),
        ([(100, 101), (102, 103)], None),
        ([(100, 101)], None),
        ([(100, 102), (101, 102), (103, 102), (100, 101)], None),  # most, but not nearly all
    ],
)
def test_loss_watch__the_rank_that_most_losses_touch(
    pairs: list[tuple[int, int]], rank: int | None
) -> None:
    found = lossy_watch(mesh(4), pairs, 10).lossy(10 * NS, slowed=False)
    assert found is not None
    assert found.pid == rank
    assert found.rate_per_s == pytest.approx(8 * len(pairs), rel=0.1)


def test_loss_watch__rare_losses_are_healthy_and_old_ones_forgotten() -> None:
    views = mesh(2)
    watch = LossWatch()
    assert watch.lossy(0, slowed=False) is None
    for second in range(0, 10, 2):
        watch.observe(again(views, 100, 101, second * NS), views)
    assert watch.lossy(10 * NS, slowed=False) is None
    assert lossy_watch(views, [(100, 101)], 10).lossy(25 * NS, slowed=False) is None


def narrow(passes: list[list[tuple[int, int]]]) -> NarrowLink:
    """What each pass saw of senders whose bytes wait: from a rank to another."""
    views, watch = mesh(4), NarrowLink()
    for waiting in passes:
        for pid, process in views.items():
            for fd, sample in list(process.sockets.items()):
                unsent = 4096 if (int(pid), fd) in waiting else 0
                process.sockets[fd] = replace(sample, unsent_bytes=unsent)
        watch.observe(views)
    return watch


@pytest.mark.parametrize(
    ("passes", "rank"),
    [
        pytest.param([[(102, 101)]] * 10 + [[]] * 2, None, id="two ends, and no other link"),
        pytest.param([[(102, 101)], [(103, 102)]] * 6, 102, id="from it and to it"),
        pytest.param([[(102, 101), (102, 103)]] * 9 + [[]] * 3, 102, id="in most passes"),
        pytest.param([[(102, 101), (102, 103)]] * 8 + [[]] * 4, None, id="in too few"),
        pytest.param([[(102, 101), (103, 100)]] * 12, None, id="links of others too"),
        pytest.param([[(102, 101), (102, 103)]] * 11, None, id="too few passes"),
    ],
)
def test_narrow_link__the_rank_at_which_bytes_wait(
    passes: list[list[tuple[int, int]]], rank: int | None
) -> None:
    assert narrow(passes).pid == rank


def test_narrow_link__a_job_that_is_fast_again_has_none() -> None:
    watch = narrow([[(102, 101), (102, 103)]] * 12)
    watch.forget()
    assert watch.pid is None


def test_narrow_link__one_is_found_while_the_job_is_suspicious_all_the_time() -> None:
    """As on a busy machine, where some rank is always late."""
    stage = trained(seconds=60)
    stage.become(stage.rank(3), "futex")
    stage.run(15)
    assert stage.job.attention.suspicious
    for rank in range(3):
        stage.rank(rank).moves = 2_000
    stage.rank(1).unsent = 4096
    stage.run(40)
    assert stage.job.attention.suspicious
    verdict = stage.verdicts[-1]
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.SLOW, Cause.LINK)
    assert verdict.culprit.rank == 1


def test_loss_watch__a_burst_of_a_moment_is_no_lossy_link() -> None:
    assert lossy_watch(mesh(2), [(100, 101)], 2, per_s=50).lossy(3 * NS, slowed=False) is None


def test_loss_watch__losses_to_any_peer_but_a_rank_do_not_count() -> None:
    views = mesh(3)
    fact = TcpRetransmit(0, Pid(100), ("10.0.0.1", 5), ("8.8.8.8", 443))
    watch = LossWatch()
    for step in range(60):
        watch.observe(TcpRetransmit(step * NS // 6, *_rest(fact)), views)
        watch.observe(TcpRetransmit(step * NS // 6, Pid(9), *_rest(fact)[1:]), views)
    assert watch.lossy(10 * NS, slowed=False) is None


def _rest(retransmit: TcpRetransmit) -> tuple[Pid, tuple[str, int], tuple[str, int]]:
    return retransmit.pid, retransmit.local, retransmit.remote


def test_loss_watch__when_the_job_has_become_slow_fewer_losses_matter() -> None:
    watch = lossy_watch(mesh(2), [(100, 101)], 10, per_s=2)
    assert watch.lossy(10 * NS, slowed=False) is None
    assert watch.lossy(10 * NS, slowed=True) is not None


@pytest.mark.parametrize(
    ("pairs", "is_local"),
    [
        pytest.param([(100, 101), (102, 103), (101, 102), (103, 100)], False, id="everywhere"),
        pytest.param([(100, 101), (102, 100), (103, 100), (100, 103)], True, id="one rank"),
        pytest.param([(100, 101)] * 4, True, id="one link"),
    ],
)
def test_loss_watch__a_few_losses_everywhere_are_no_link(
    pairs: list[tuple[int, int]], is_local: bool
) -> None:
    """As on a host whose ranks get too little of its CPUs: the job is slow, and all answer late."""
    views = mesh(4)
    watch = lossy_watch(views, pairs, 10, per_s=1)
    found = watch.lossy(10 * NS, slowed=True)
    assert found is not None
    assert found.is_local == is_local
    pace = trained().job.pace
    pace.slowed = True
    slow = slowness(pace, watch, NarrowLink(), views, 10 * NS)
    assert (slow is not None) == is_local


def lose_packets(stage: Stage, seconds: int, per_s: int = 8) -> None:
    """Between ranks 1 and 2, so many times a second."""
    ends = ("127.0.0.1", 10_102), ("127.0.0.1", 10_201)
    for _ in range(4 * seconds):
        for _ in range(per_s // 4):
            stage.feed(TcpRetransmit(stage.now_ns, Pid(101), *ends))
        stage.one_pass(NS // 4)


@pytest.mark.parametrize(("per_s", "kind"), [(8, VerdictKind.WORKING), (16, VerdictKind.SLOW)])
def test_packet_loss__losses_that_cost_a_job_nothing_do_not_make_it_slow(
    per_s: int, kind: VerdictKind
) -> None:
    stage = trained()
    lose_packets(stage, 20, per_s)
    assert stage.verdicts[-1].kind is kind


def test_packet_loss__losses_are_no_excuse_for_a_link_that_carries_nothing_for_long() -> None:
    stage = trained()
    lose_packets(stage, 8)
    stage.rank(1).backoff = 4
    all_wait(stage, -1)
    lose_packets(stage, 4)
    assert VerdictKind.LOST_LINK not in {verdict.kind for verdict in stage.verdicts}
    lose_packets(stage, 3)
    assert stage.verdicts[-1].kind is VerdictKind.LOST_LINK
