"""Who belongs to a job, and who holds the other end of a file."""

from __future__ import annotations

import signal

from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.diagnosis.membership.file_holders import FileHolders
from kcover_ebpf.diagnosis.membership.members import Members
from kcover_ebpf.facts.host import ProcessSeen, WaitedFile
from kcover_ebpf.facts.kernel import DescriptorSample, ProcessExit
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.model.roles import Role
from tests.unit.support.link_builders import edge


def appear(
    members: Members, pid: int, ppid: int, command: str, rank: int | None = None, size: int = 2
) -> None:
    environ = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": str(size)}
    members.view(Pid(pid), 0).seen = ProcessSeen(
        0, Pid(pid), Pid(ppid), "x", tuple(command.split()), environ
    )
    members.rename()
    members.classify()


def two_ranks() -> Members:
    members = Members()
    for rank in (0, 1):
        appear(members, 100 + rank, 1, "python3 train.py", rank)
    appear(members, 501, 101, "python3 train.py")
    return members


def leave(members: Members, pid: int, code: int = 0) -> None:
    members.leave(Pid(pid), ProcessExit(0, Pid(pid), code, 0, False, "x"), learns=False)


def test_members__ranks_their_children_and_the_size_of_the_world() -> None:
    members = two_ranks()
    assert members.world_size == 2
    assert set(members.ranks) == {100, 101}
    assert set(members.owned) == {100, 101, 501}
    assert [view.pid for view in members.children(Pid(101))] == [501]
    assert not members.children(Pid(100))


def test_members__a_rank_is_wrapped_while_the_shell_around_it_lives() -> None:
    members = Members()
    appear(members, 800, 1, "bash run.sh", 0)
    appear(members, 801, 800, "readlink x", 0)
    assert members.is_wrapped(members.views[Pid(801)])
    leave(members, 800)
    assert not members.is_wrapped(members.views[Pid(801)])


def test_members__roles_are_decided_anew_only_when_something_was_learned() -> None:
    members = two_ranks()
    assert not members.classify()
    members.rename()
    assert members.classify()


def test_members__ranks_and_loaders_that_ended_stay_known_and_helpers_do_not() -> None:
    members = two_ranks()
    appear(members, 700, 101, "rsync a b")
    for pid in (101, 501, 700):
        leave(members, pid)
    assert set(members.views) == {100, 101, 501}
    assert set(members.ranks) == {100}
    assert set(members.all_ranks) == {100, 101}
    assert set(members.owned) == {100}


def test_members__what_ran_before_the_numbered_ranks_was_a_wrapper() -> None:
    members = Members()
    appear(members, 10, 1, "python3 setup.py")
    assert set(members.ranks) == {10}
    leave(members, 10)
    assert set(members.all_ranks) == {10}
    appear(members, 100, 1, "python3 train.py", rank=0)
    assert set(members.all_ranks) == {100}


def test_members__so_was_what_had_the_number_of_its_pod_only() -> None:
    members = Members()
    environ = {"JOB_COMPLETION_INDEX": "0"}
    words = ("python3", "setup.py")
    members.view(Pid(10), 0).seen = ProcessSeen(0, Pid(10), Pid(1), "x", words, environ)
    members.rename()
    members.classify()
    leave(members, 10)
    assert set(members.all_ranks) == {10}
    appear(members, 100, 1, "python3 train.py", rank=0)
    assert set(members.all_ranks) == {100}


def test_members__a_rank_that_ended_keeps_its_role() -> None:
    members = two_ranks()
    leave(members, 100)
    members.rename()
    members.classify()
    gone = members.views[Pid(100)].membership
    assert gone is not None
    assert (gone.role, gone.rank) == (Role.RANK, 0)


def hold(members: Members, pid: int, fd: int, inode: int, peer: int | None = None) -> None:
    kind = "pipe" if peer is None else "unix"
    other = None if peer is None else Inode(peer)
    sample = DescriptorSample(0, Pid(pid), fd, kind, Inode(inode), other)
    members.view(Pid(pid), 0).descriptors[fd, Inode(inode)] = sample


def holders(members: Members, pid: int, fd: int, inode: int) -> tuple[Pid, ...]:
    waited = WaitedFile(fd, "pipe", f"pipe:[{inode}]", Inode(inode), "", "")
    ends = EndpointIndex(members.views.values())
    return FileHolders(members, ends).of(Pid(pid), waited)


def test_members__who_has_a_pipe_open() -> None:
    members = two_ranks()
    hold(members, 101, 9, 77)
    hold(members, 501, 1, 77)
    hold(members, 100, 4, 78)
    assert holders(members, 101, 9, 77) == (501,)
    leave(members, 501)
    assert holders(members, 101, 9, 77) == ()


def test_members__the_other_end_of_a_unix_socket_has_another_inode() -> None:
    members = two_ranks()
    hold(members, 101, 9, 77, peer=78)
    hold(members, 501, 3, 78, peer=77)
    hold(members, 100, 3, 77, peer=78)
    assert holders(members, 101, 9, 77) == (501,)


def test_members__the_other_end_of_a_connection_is_known_by_its_addresses() -> None:
    members = two_ranks()
    members.views[Pid(100)].on_socket(edge(Pid(100), Pid(101)))
    assert holders(members, 100, 101, 0) == ()
    members.views[Pid(101)].on_socket(edge(Pid(101), Pid(100)))
    assert holders(members, 100, 101, 0) == (101,)


def test_members__the_sampler_knows_what_the_name_of_a_descriptor_does_not_say() -> None:
    members = two_ranks()
    members.views[Pid(100)].on_socket(edge(Pid(100), Pid(101)))
    hold(members, 100, 9, 77, peer=78)
    for fd, kind in ((101, "tcp"), (9, "unix"), (5, "socket")):
        waited = WaitedFile(fd, "socket", "socket:[1]", Inode(1), "", "")
        assert members.kind(Pid(100), waited) == kind


def test_members__what_a_script_runs_before_the_training_is_forgotten_when_it_ends_well() -> None:
    members = Members()
    appear(members, 1, 0, "sh -c x")
    appear(members, 2, 1, "cut -f1 hosts")
    appear(members, 3, 1, "python3 train.py")
    members.views[Pid(3)].peer_bytes_ns = 1
    leave(members, 2)
    leave(members, 3)
    assert set(members.all_ranks) == {3}
    appear(members, 4, 1, "prepare")
    leave(members, 4, code=1)
    assert set(members.all_ranks) == {3, 4}


def test_members__a_child_that_writes_its_core_is_still_waited_for() -> None:
    members = two_ranks()
    child = members.views[Pid(501)]
    child.is_dying = True
    members.leave(Pid(501), ProcessExit(0, Pid(501), 0, signal.SIGABRT, False, "x"), learns=False)
    members.classify()
    assert [process.pid for process in members.children(Pid(101))] == [501]
    child.is_dying = False
    members.leave(Pid(501), ProcessExit(0, Pid(501), 0, signal.SIGABRT, True, "x"), learns=False)
    members.classify()
    assert [process.pid for process in members.children(Pid(101))] == []
