"""Which processes are watched, as user space knows them: bounded for each pod."""

from __future__ import annotations

from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.owners import SHARES, of_pod
from kcover_ebpf.kernel.roster import WatchedProcesses

MOST = 2 * SHARES["processes"]
ONE, OTHER = of_pod("one"), of_pod("other")


def full() -> WatchedProcesses:
    roster = WatchedProcesses()
    assert all(roster.add_child(Pid(1000 + number), 1, ONE) for number in range(MOST))
    return roster


def test_add_child__a_pod_that_forks_without_end_is_remembered_up_to_a_bound() -> None:
    roster = full()
    assert not any(roster.add_child(Pid(100_000 + number), 2, ONE) for number in range(1000))
    assert Pid(100_000) not in roster
    # it takes no room of another pod, nor of what belongs to none
    assert roster.add_child(Pid(200_000), 2, OTHER)
    assert roster.add_child(Pid(200_001), 2)


def test_add_child__who_ends_leaves_room_for_the_next() -> None:
    roster = full()
    assert roster.add_child(Pid(1000), 2, ONE), "known before"
    roster.discard(Pid(1000))
    roster.discard(Pid(1000))
    assert roster.add_child(Pid(100_000), 3, ONE)
    assert not roster.add_child(Pid(100_001), 3, ONE)
