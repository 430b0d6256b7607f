"""When the members of a job are listed: at once for a stranger, else ever more seldom."""

from __future__ import annotations

import pytest

from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.watching.member_search import MemberSearch

NONE = 0, 0


def listings(search: MemberSearch, seconds: int, *, found: bool = False) -> list[int]:
    """The seconds, from 1 on, in which a listing is due though no stranger came."""
    due = []
    for second in range(1, seconds + 1):
        if search.is_due(second * NS, NONE):
            due.append(second)
            search.listed(second * NS, found=found)
    return due


def test_member_search__a_listing_that_finds_nothing_new_makes_the_next_one_later() -> None:
    assert listings(MemberSearch(), 60) == [1, 7, 19, 43]


def test_member_search__a_job_that_grows_is_listed_often() -> None:
    assert listings(MemberSearch(), 10, found=True) == [1, 4, 7, 10]


def test_member_search__what_ended_is_searched_for_again_at_once() -> None:
    search = MemberSearch()
    listings(search, 60)
    search.hurry()
    assert search.is_due(61 * NS, NONE)


def test_living__who_ended_and_is_listed_still_is_no_new_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its memory is being freed; another process of that number is a new one."""
    starts_ns = {Pid(7): 3 * NS, Pid(8): 3 * NS}
    monkeypatch.setattr("kcover_ebpf.host.procfs.start_ns", starts_ns.get)
    search = MemberSearch()
    assert search.living({7, 8}) == {7, 8}
    search.ended(Pid(7), 60 * NS)
    assert search.living({7, 8}) == {8}
    starts_ns[Pid(7)] = 61 * NS
    assert search.living({7, 8}) == {7, 8}
    del starts_ns[Pid(7)]
    assert search.living({7, 8}) == {7, 8}, "its end was not announced"


def test_member_search__a_stranger_in_a_known_group_is_searched_at_once() -> None:
    search = MemberSearch()
    listings(search, 60)
    assert not search.is_due(61 * NS, NONE)
    assert search.is_due(62 * NS, (1, 4711))
    search.listed(62 * NS, found=False)
    # no member, then; another one is
    assert not search.is_due(63 * NS, (1, 4711))
    assert not search.is_due(64 * NS, (1, 4711))
    assert search.is_due(65 * NS, (1, 4712))


def test_member_search__strangers_that_change_all_the_time_do_not_make_every_pass_list() -> None:
    search = MemberSearch()
    due = 0
    for quarter in range(4, 84):
        now_ns = quarter * NS // 4
        if search.is_due(now_ns, (1, quarter)):
            due += 1
            search.listed(now_ns, found=False)
    assert due <= 20
