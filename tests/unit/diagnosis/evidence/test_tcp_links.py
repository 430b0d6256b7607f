"""Connections between ranks: lost links, readers that do not read, who sent last."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.evidence import tcp_links
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.stacks import KnownWaits
from kcover_ebpf.diagnosis.judge.rank_view import Habits, completed
from kcover_ebpf.diagnosis.membership import endpoints
from kcover_ebpf.ids import NS, Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.roles import Membership, Role
from tests.unit.support.link_builders import edge, mesh

NOW_NS = 10_000 * NS
Ranks = tuple[dict[Pid, RankSnapshot], endpoints.EndpointIndex]


def ranks_of(views: dict[Pid, ProcessHistory], *, elsewhere: bool = False) -> Ranks:
    """What the judge gets of these processes, and the index of their connections."""
    ends = endpoints.EndpointIndex(views.values(), elsewhere=elsewhere)
    habits = Habits(NOW_NS, ends, KnownWaits(), {}, {}, len(views), {})
    states = (RankSnapshot(pid, Role.RANK, State.PEERS, rank=pid - 100) for pid in views)
    return {state.pid: completed(state, views[state.pid], habits) for state in states}, ends


def lose(
    views: dict[Pid, ProcessHistory], pairs: Iterable[tuple[int, int]], backoff: int = 4
) -> None:
    for pid, other in pairs:
        sample = edge(Pid(pid), Pid(other), backoff=backoff, unacked_bytes=96)
        views[Pid(pid)].on_socket(sample)


def lost(views: dict[Pid, ProcessHistory]) -> list[tcp_links.LostLink]:
    ranks, ends = ranks_of(views)
    return tcp_links.lost_edges(ranks.values(), ends)


@pytest.mark.parametrize(("backoff", "is_lost"), [(0, False), (2, False), (3, True), (9, True)])
def test_lost_edges__an_edge_is_lost_from_the_third_doubling_on(
    backoff: int, is_lost: bool
) -> None:
    views = mesh(3)
    lose(views, [(100, 101)], backoff)
    assert bool(lost(views)) == is_lost


def test_lost_edges__an_edge_with_nothing_on_its_way_is_not_lost() -> None:
    views = mesh(2)
    views[Pid(100)].on_socket(edge(Pid(100), Pid(101), backoff=9))
    assert lost(views) == []


def test_lost_edges__a_lost_edge_says_between_whom() -> None:
    views = mesh(2)
    lose(views, [(100, 101)])
    (found,) = lost(views)
    assert (found.pid, found.peer_pid, found.rank, found.unacked_bytes) == (100, 101, 0, 96)
    assert found.text == (
        "rank 0 (10.0.0.1:10001) -> rank 1 (10.0.0.1:10100): 96 B unanswered, back-off 4"
    )
    foreign = {Pid(100): views[Pid(100)]}
    ranks, ends = ranks_of(foreign, elsewhere=True)
    assert tcp_links.lost_edges(ranks.values(), ends)[0].peer_pid is None
    assert lost(foreign) == []


@pytest.mark.parametrize(
    ("ranks", "pairs", "end"),
    [
        (4, [(100, 102), (101, 102), (102, 103)], 102),
        (4, [(100, 102), (102, 100), (102, 101)], 102),
        (4, [(100, 101)], None),
        (4, [(100, 101), (102, 103)], None),
        (3, [(100, 101), (101, 102), (100, 102)], None),
        (2, [(100, 101), (101, 100)], None),
    ],
)
def test_common_end__the_one_end_that_all_lost_edges_have_in_common(
    ranks: int, pairs: list[tuple[int, int]], end: int | None
) -> None:
    views = mesh(ranks)
    lose(views, pairs)
    assert tcp_links.common_end(lost(views), ranks) == end


@pytest.mark.parametrize(
    ("pairs", "ends"),
    [
        ([(100, 101)], (0, 1)),
        ([(101, 100), (100, 101)], (0, 1)),
        ([(103, 102)], (2, 3)),
        ([(100, 101), (102, 103)], None),
        ([], None),
    ],
)
def test_both_ends__a_single_lost_link_has_two_ends_and_it_may_be_either(
    pairs: list[tuple[int, int]], ends: tuple[int, int] | None
) -> None:
    views = mesh(4)
    lose(views, pairs)
    assert tcp_links.both_ends(lost(views)) == ends


def test_common_end__two_ranks_never_have_a_common_end() -> None:
    views = mesh(3)
    lose(views, [(100, 102), (101, 102)])
    assert tcp_links.common_end(lost(views), 3) == 102
    assert tcp_links.common_end(lost(views), 2) is None


def test_closed_reader__a_closed_window_is_a_reader_that_does_not_read_and_no_lost_link() -> None:
    views = mesh(3)
    assert tcp_links.closed_reader(*ranks_of(views)) is None
    for pid in (100, 101):
        full = edge(Pid(pid), Pid(102), backoff=5, unsent_bytes=5000, send_window_bytes=0)
        views[Pid(pid)].on_socket(full)
    assert lost(views) == []
    assert tcp_links.closed_reader(*ranks_of(views)) == (102, 10_000)
    end = Endpoint("10.0.0.1", 1)
    unanswered = SocketSnapshot(end, end, "ESTABLISHED", unsent=5000, unacked=1, backoff=5)
    assert not tcp_links.window_closed(unanswered)


def test_unread__bytes_count_only_from_ranks() -> None:
    views = mesh(3)
    me = views[Pid(100)]
    me.on_socket(edge(Pid(100), Pid(101), unread_bytes=7))
    me.on_socket(replace(edge(Pid(100), Pid(102), unread_bytes=5), remote=("10.9.9.9", 1)))
    ranks, ends = ranks_of(views)
    assert tcp_links.unread(ranks[me.pid], ends, ranks) == (7, 1)
    assert tcp_links.unread(ranks[me.pid], ends, {}) == (0, 0)


def sent_at(times_ms: list[int]) -> dict[Pid, ProcessHistory]:
    views = mesh(len(times_ms))
    for (pid, view), at_ms in zip(views.items(), times_ms, strict=True):
        for other in views:
            if other != pid:
                view.on_socket(edge(pid, other, last_send_ns=at_ms * 1_000_000))
    return views


@pytest.mark.parametrize(
    ("times_ms", "oldest", "newest"),
    [
        ([5000, 5000, 4000, 5000], 102, None),
        ([5000, 5000, 4950, 5000], None, None),
        ([5000, 5000, 6000, 5000], None, 102),
        ([4000, 5000, 6000], 100, 102),
        ([0, 5000, 5001], None, None),
        ([5000, 5060], 100, 101),
    ],
)
def test_oldest_sender__who_sent_before_or_after_all_others(
    times_ms: list[int], oldest: int | None, newest: int | None
) -> None:
    views = sent_at(times_ms)
    ranks, ends = ranks_of(views)
    first, last = tcp_links.oldest_sender(ranks, ends), endpoints.newest_sender(views, ends)
    assert (first and first[0], last and last[0]) == (oldest, newest)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=6))
def test_oldest_sender__the_lead_of_a_sender_is_clear(times_ms: list[int]) -> None:
    views = sent_at(times_ms)
    found = tcp_links.oldest_sender(*ranks_of(views))
    first, second = sorted(times_ms)[:2]
    assert (found is not None) == (second - first >= 60)
    if found is not None:
        assert found[0] == 100 + times_ms.index(first)
        assert found[1] == pytest.approx((second - first) / 1000)


def test_endpoint_index__a_launcher_is_inside_the_job_but_no_peer() -> None:
    views = mesh(3)
    me, launcher = views[Pid(100)], ProcessHistory(Pid(200), 0)
    to_launcher = edge(Pid(100), Pid(200), last_send_ns=5 * NS)
    me.on_socket(to_launcher)
    assert endpoints.EndpointIndex(views.values()).outside(me) == [to_launcher]
    launcher.membership = Membership(Role.LAUNCHER, None, None, None)
    launcher.on_socket(edge(Pid(200), Pid(100)))
    ends = endpoints.EndpointIndex([*views.values(), launcher])
    assert ends.outside(me) == []
    assert ends.peer(to_launcher) is None
