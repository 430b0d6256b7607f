"""Counted operations in the form of NCCL's RAS, and what the one comparison makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kcover_ebpf.collectives import ras
from kcover_ebpf.collectives.nccl.counts import Account, Birth, Counted, Launched, Messages, account
from kcover_ebpf.ids import Pid

WORLD, HALF = 0xA11, 0xBEEF
HOST = "node1"


def launched(rank: int, name: int = WORLD, size: int = 4, **counts: int) -> Launched:
    """By the process 100 + rank."""
    return Launched(Pid(100 + rank), Birth(name, size, rank), counts)


def exchanged(rank: int, peer: int, sent: int, received: int) -> Messages:
    return Messages(Pid(100 + rank), WORLD, peer, sent, received)


def compared(counted: Counted, *, all_here: bool = True) -> tuple[Account, ras.Reading]:
    found = account(counted, HOST, all_here=all_here)
    reading = ras.read([found.report, found.report])
    assert reading is not None
    return found, reading


def pids(pairs: Sequence[tuple[ras.RasRank, ras.RasCommunicator]]) -> set[int]:
    return {rank.pid for rank, _ in pairs}


ALL = tuple(launched(rank, AllReduce=7) for rank in range(4))


def test_account__ranks_that_launched_the_same_are_equal() -> None:
    found, reading = compared(Counted(ALL))
    assert reading.equal
    assert reading.complete
    assert not reading.moving
    assert found.unseen == ""
    assert not found.hidden


def test_account__the_rank_that_launched_less_is_behind() -> None:
    _, reading = compared(Counted((*ALL[:3], launched(3, AllReduce=6))))
    assert pids(reading.behind) == {103}


def test_account__a_rank_that_has_not_used_its_communicator_yet_is_behind() -> None:
    """The first collective: it never came, so only its initialisation was seen."""
    counted = Counted(
        tuple(launched(rank, AllReduce=1) for rank in range(3)),
        waiting=((Pid(103), Birth(WORLD, 4, 3)),),
    )
    found, reading = compared(counted)
    assert pids(reading.behind) == {103}
    assert not found.hidden


def test_account__different_operations_are_a_mismatch_with_the_odd_one_named() -> None:
    _, reading = compared(Counted((*ALL[:3], launched(3, AllReduce=6, AllGather=1))))
    assert pids(reading.odd) == {103}
    assert [len(side) for side in reading.sides] == [3, 1]
    assert not reading.behind


def test_account__who_is_behind_because_it_waits_in_another_communicator_is_not_named() -> None:
    """Rank 1 waits in the half of ranks 0 and 1; rank 0 is in neither."""
    half = (launched(0, HALF, 2, AllGather=3), launched(1, HALF, 2, AllGather=4))
    world = (launched(0, AllReduce=6), launched(1, AllReduce=6), *ALL[2:])
    found, reading = compared(Counted((*world, *half)))
    assert pids(reading.behind) == {100}
    assert not found.hidden


def line(last_received: int) -> tuple[Messages, ...]:
    """A pipeline of four ranks; each sent 9 to the next, and the last one may not have taken the last."""
    return (
        exchanged(0, 1, 9, 0),
        exchanged(1, 0, 0, 9), exchanged(1, 2, 9, 0),
        exchanged(2, 1, 0, 9), exchanged(2, 3, 9, 0),
        exchanged(3, 2, 0, last_received),
    )  # fmt: skip


def test_account__messages_are_compared_with_those_of_the_other_end() -> None:
    """The counts of the ends differ by nature: the first rank only sends, the last only receives."""
    assert compared(Counted(ALL, messages=line(9)))[1].equal
    _, reading = compared(Counted(ALL, messages=line(8)))
    assert pids(reading.behind) == {103}


def test_account__a_receive_without_its_send_names_the_sender() -> None:
    counted = Counted(ALL, messages=(exchanged(1, 0, 0, 5), exchanged(0, 1, 4, 0)))
    _, reading = compared(counted)
    assert pids(reading.behind) == {100}


def test_account__an_end_that_never_took_part_has_launched_nothing() -> None:
    _, reading = compared(Counted(ALL, messages=(exchanged(2, 3, 1, 0),)))
    assert pids(reading.behind) == {103}


def test_account__messages_to_itself_and_to_ranks_elsewhere_are_not_compared() -> None:
    counted = Counted(ALL[:2], messages=(exchanged(0, 0, 3, 2), exchanged(0, 3, 8, 1)))
    assert len(account(counted, HOST, all_here=False).report.communicators) == 1


def test_account__a_communicator_that_is_older_hides_what_its_process_waits_for() -> None:
    older = Launched(Pid(103), Birth(0, 0, 0), {"AllReduce": 50})
    found, reading = compared(Counted((*ALL[:3], launched(3, AllReduce=6), older)))
    assert found.hidden == {103}
    assert pids(reading.behind) == {103}, "whoever judges leaves it out"
    assert not reading.complete
    assert "1 ranks use communicators that were created before" in found.unseen


def test_account__a_birth_beside_an_older_communicator_is_no_absence() -> None:
    """It may be the very communicator that is used under an unknown identity."""
    older = Launched(Pid(103), Birth(0, 0, 0), {"AllReduce": 1})
    world = tuple(launched(rank, AllReduce=1) for rank in range(3))
    found, reading = compared(Counted((*world, older), waiting=((Pid(103), Birth(WORLD, 4, 3)),)))
    assert not reading.behind
    assert found.hidden == {100, 101, 102, 103}, "the communicator is not seen whole"


def test_account__ranks_of_a_communicator_that_is_partly_elsewhere_are_hidden() -> None:
    found, reading = compared(Counted((launched(0, AllReduce=6), ALL[1])), all_here=False)
    assert found.hidden == {100, 101}
    assert not reading.complete


def split(rank: int, key: int, count: int) -> Launched:
    return Launched(Pid(100 + rank), Birth(HALF, 0, rank, key, is_split=True), {"AllReduce": count})


@pytest.mark.parametrize(
    ("all_here", "numbers"), [(True, {101: 1, 103: 0}), (False, {101: 1, 103: 3})]
)
def test_account__ranks_of_a_split_are_numbered_by_its_keys_where_all_are_seen(
    all_here: bool, numbers: dict[int, int]
) -> None:
    found = account(Counted((split(1, 5, 3), split(3, 2, 3))), HOST, all_here=all_here)
    (comm,) = found.report.communicators
    assert {rank.pid: rank.rank for rank in comm.ranks} == numbers
    assert comm.size == 2
    assert found.hidden == (set() if all_here else {101, 103})


def test_account__several_ranks_in_one_process_are_not_compared() -> None:
    twice = (ALL[0], replace(ALL[0], birth=Birth(WORLD, 4, 1)), *ALL[2:])
    found = account(Counted(twice), HOST, all_here=True)
    assert found.report.communicators == ()
    assert found.unseen == "several ranks of one process are not distinguished"
    assert found.hidden == {100, 102, 103}


def test_account__what_found_no_room_is_said_and_hides_its_process() -> None:
    found = account(Counted(ALL, lost={Pid(101): 3}), HOST, all_here=True)
    assert found.hidden == {101}
    assert found.unseen == "3 communicators or peers did not fit into the tables"
    assert not found.report.whole
