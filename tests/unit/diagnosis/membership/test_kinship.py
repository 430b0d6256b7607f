"""Who has joined whom: connections between processes of one program make them ranks, and nothing else does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from kcover_ebpf.diagnosis.history.links import Links
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.diagnosis.membership.members import Members
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import ProcessExit, SocketSample
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.roles import Role
from tests.unit.support.thread_samples import sample

SPAWN = "python3 -c spawn_main(pipe_handle={}) --multiprocessing-fork"


@dataclass
class Host:
    """Processes and their connections, pass by pass."""

    members: Members = field(default_factory=Members)
    now_ns: int = 1000 * NS
    moved: int = 1000

    def start(
        self, pid: int, ppid: int, command: str, comm: str = "python3", **environ: str
    ) -> None:
        words = tuple(command.split())
        seen = ProcessSeen(self.now_ns, Pid(pid), Pid(ppid), comm, words, environ)
        self.members.view(Pid(pid), self.now_ns).seen = seen
        self.members.rename()
        self.members.classify()

    def rename(self, pid: int, name: str) -> None:
        """The process calls itself so from now on."""
        first = replace(sample(1.0), pid=Pid(pid), tid=Tid(pid), comm=name)
        self.members.views[Pid(pid)].threads[Tid(pid)] = ThreadHistory(first)

    def connect(self, one: int, other: int, *, heirs: dict[int, int] | None = None) -> None:
        """A connection in use; `heirs`: processes that have the end of `one` as well, by its descriptor there."""
        ports = ("127.0.0.1", 1000 * one + other), ("127.0.0.1", 1000 * other + one)
        self.socket(one, *ports)
        self.socket(other, *ports[::-1])
        for pid in heirs or {}:
            self.socket(pid, *ports)

    def socket(self, pid: int, local: tuple[str, int], remote: tuple[str, int]) -> None:
        self.members.views[Pid(pid)].on_socket(
            SocketSample(
                boottime_ns=self.now_ns,
                pid=Pid(pid),
                fd=remote[1] // 1000,
                inode=Inode(local[1]),
                state="ESTABLISHED",
                local=local,
                remote=remote,
                unread_bytes=0,
                unsent_bytes=0,
                unacked_bytes=0,
                acked_bytes=self.moved,
                received_bytes=self.moved,
                backoff=0,
                send_window_bytes=65536,
                last_send_ns=self.now_ns,
                last_receive_ns=self.now_ns,
            )
        )

    def end_pass(self) -> None:
        self.now_ns += NS
        self.moved += 100_000
        self.members.meet()
        self.members.classify()
        for view in self.members.views.values():
            view.traffic.end_pass(self.now_ns, NS, healthy=True)

    def roles(self) -> dict[int, str]:
        views = self.members.views.values()
        return {
            view.pid: view.membership.role.value for view in views if view.membership is not None
        }


def spawned(**environ: str) -> Host:
    host = Host()
    host.start(10, 1, "python3 train.py", **environ)
    for pid in (11, 12, 13):
        host.start(pid, 10, SPAWN.format(pid), **environ)
    return host


def test_kinship__what_a_program_spawned_is_asked_for_its_connections() -> None:
    assert set(spawned().members.connected) == {10, 11, 12, 13}


def test_kinship__spawned_processes_that_are_connected_to_each_other_are_the_ranks() -> None:
    host = spawned(RANK="0", WORLD_SIZE="1")
    host.end_pass()
    assert host.roles() == {10: "rank", 11: "loader", 12: "loader", 13: "loader"}
    host.connect(11, 12)
    host.end_pass()
    assert host.roles() == {10: "launcher", 11: "rank", 12: "rank", 13: "helper"}
    host.connect(12, 13)
    host.end_pass()
    assert host.roles() == {10: "launcher", 11: "rank", 12: "rank", 13: "rank"}
    assert all(view.membership and view.membership.joined for view in host.members.ranks.values())
    assert host.members.world_size is None
    host.start(14, 12, SPAWN.format(14))
    host.start(15, 12, SPAWN.format(15))
    host.end_pass()
    assert host.roles()[14] == host.roles()[15] == Role.LOADER.value
    assert 14 not in host.members.connected


def test_kinship__once_ranks_are_connected_who_shares_the_number_of_one_is_none() -> None:
    host = Host()
    for pid, number, script in ((11, "0", "train"), (12, "1", "train"), (13, "0", "watch")):
        host.start(pid, 10, f"python3 {script}.py", RANK=number, WORLD_SIZE="2")
    host.end_pass()
    assert host.roles() == dict.fromkeys((11, 12, 13), "rank")
    host.connect(11, 12)
    host.end_pass()
    assert host.roles() == {11: "rank", 12: "rank", 13: "helper"}


WORKER = "python3 default_worker.py --node-ip-address=192.0.2.1", "python3"
IDLE = "ray::IDLE", "ray::IDLE"
ACTOR = "ray::_RayTrainWorker__execute.get_next", "ray::_RayTrainW"


@pytest.mark.parametrize("read", [*product((WORKER, IDLE, ACTOR), repeat=3)])
def test_kinship__actors_are_alike_however_late_each_of_them_was_read(
    read: tuple[tuple[str, str], ...],
) -> None:
    """Ray writes titles over the arguments of its workers some seconds after their start."""
    host = Host()
    host.start(9, 1, "python3 train.py")
    host.start(10, 9, "raylet", "raylet")
    for pid, (command, comm) in enumerate(read, 11):
        host.start(pid, 10, command, comm)
        host.rename(pid, "ray::_RayTrainW")
    assert {11, 12, 13} <= set(host.members.connected)
    host.connect(11, 12)
    host.connect(12, 13)
    host.end_pass()
    assert host.roles() == {9: "launcher", 10: "launcher", 11: "rank", 12: "rank", 13: "rank"}


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (("python3 store.py", "python3"), ("python3 train.py", "python3"), "pt_main_thread"),
        (("python3 store.py", "pt_main_thread"), ("store", "store"), "pt_main_thread"),
        (("python3 a.py", "python3"), ("python3 b.py", "python3"), "python3"),
    ],
)
def test_kinship__two_programs_that_call_themselves_alike_are_two(
    one: tuple[str, str], other: tuple[str, str], name: str
) -> None:
    host = Host()
    host.start(10, 1, "python3 main.py")
    for pid, (command, comm) in ((11, one), (12, other)):
        host.start(pid, 10, command, comm)
        host.rename(pid, name)
    assert set(host.members.connected) == {10}
    host.connect(11, 12)
    host.end_pass()
    assert list(host.members.ranks) == [10]


def test_kinship__a_rank_stays_one_when_its_connections_are_closed_and_after_its_end() -> None:
    host = spawned()
    host.connect(11, 12)
    host.end_pass()
    closed = host.members.views[Pid(11)]
    closed.sockets, closed.links = {}, Links()
    host.end_pass()
    assert set(host.members.ranks) == {11, 12}
    host.members.leave(
        Pid(11), ProcessExit(host.now_ns, Pid(11), 0, 9, False, "python3"), learns=False
    )
    host.members.rename()
    host.end_pass()
    assert set(host.members.all_ranks) == {11, 12}
    assert set(host.members.ranks) == {12}


def test_kinship__the_children_of_ranks_that_are_connected_belong_to_them_whatever_they_do() -> (
    None
):
    host = Host()
    for pid, rank in ((10, "0"), (20, "1")):
        host.start(pid, 1, "python3 train.py", RANK=rank, WORLD_SIZE="2")
        for child in (pid + 1, pid + 2):
            host.start(child, pid, "python3 engine.py")
    assert len(host.members.connected) == 6
    host.connect(10, 20)
    host.end_pass()
    assert set(host.members.connected) == {10, 20}
    host.connect(11, 12)
    host.end_pass()
    assert host.roles() == {
        10: "rank",
        11: "loader",
        12: "loader",
        20: "rank",
        21: "loader",
        22: "loader",
    }


def test_kinship__the_children_of_a_rank_that_its_launcher_numbered_are_never_asked() -> None:
    host = Host()
    host.start(10, 1, "python3 train.py", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    host.start(11, 10, "python3 train.py")
    host.start(12, 10, "python3 train.py")
    assert set(host.members.connected) == {10}


def test_kinship__an_inherited_connection_is_that_of_whom_it_was_inherited_from() -> None:
    host = Host()
    for pid in (10, 20):
        host.start(pid, 1, "python3 train.py")
        for child in (pid + 1, pid + 2):
            host.start(child, pid, "python3 train.py")
    host.connect(10, 20, heirs={11: 0, 12: 0})
    host.end_pass()
    assert host.roles() == {
        10: "rank",
        11: "loader",
        12: "loader",
        20: "rank",
        21: "loader",
        22: "loader",
    }
    assert host.members.kinship.joined == {10, 20}


def test_kinship__programs_that_differ_do_not_join() -> None:
    host = Host()
    host.start(10, 1, "python3 server.py")
    host.start(11, 1, "python3 client.py")
    host.start(12, 10, "python3 a.py")
    host.start(13, 10, "python3 b.py")
    host.connect(10, 11)
    host.connect(12, 13)
    host.end_pass()
    assert host.roles() == {10: "rank", 11: "rank", 12: "loader", 13: "loader"}
    assert host.members.kinship.joined == set()


def test_kinship__a_program_that_trains_with_what_it_forked_is_a_rank_like_those() -> None:
    host = Host()
    host.start(10, 1, "python3 train.py")
    for pid in (11, 12):
        host.start(pid, 10, "python3 train.py")
    for _ in range(8):
        host.connect(10, 11)
        host.connect(10, 12)
        host.connect(11, 12)
        host.end_pass()
    assert set(host.members.ranks) == {10, 11, 12}


def test_kinship__a_store_in_the_program_that_started_the_ranks_makes_it_none() -> None:
    host = spawned()
    host.connect(11, 12)
    host.connect(12, 13)
    for _ in range(8):
        host.moved -= 100_000 - 100
        for pid in (11, 12, 13):
            host.connect(10, pid)
        host.end_pass()
    assert set(host.members.ranks) == {11, 12, 13}


def one_rank_a_pod(port: int) -> Host:
    host = Host()
    host.start(10, 1, "python3 train.py", RANK="3", WORLD_SIZE="8", MASTER_PORT="29500")
    for child in (11, 12):
        host.start(child, 10, "python3 engine.py")
    for _ in range(6):
        host.socket(10, ("10.0.0.3", 40000), ("10.0.0.1", port))
        host.end_pass()
    host.connect(11, 12)
    host.end_pass()
    return host


def test_kinship__a_rank_that_is_connected_to_ranks_on_other_hosts_keeps_its_children() -> None:
    kept = {10: "rank", 11: "loader", 12: "loader"}
    assert one_rank_a_pod(29500).roles() == kept, "to their store"
    assert one_rank_a_pod(41000).roles() == kept, "with payload"


def test_kinship__a_connection_to_a_service_makes_no_rank_of_what_starts_ranks() -> None:
    assert one_rank_a_pod(443).roles() == {10: "launcher", 11: "rank", 12: "rank"}


def test_kinship__a_launcher_of_ranks_that_are_known_is_asked_no_more() -> None:
    host = spawned()
    for _ in range(80):
        host.connect(11, 12)
        host.connect(12, 13)
        host.connect(11, 13)
        host.end_pass()
    views = host.members.views
    assert not host.members.kinship.candidates(views)
    host.connect(10, 11)
    for _ in range(8):
        host.connect(10, 11)
        host.end_pass()
    assert set(host.members.ranks) == {11, 12, 13}


def test_kinship__a_store_for_the_ranks_in_the_program_that_starts_them_makes_it_no_rank() -> None:
    host = spawned(RANK="0", WORLD_SIZE="2", MASTER_PORT="10011")
    host.connect(11, 10)
    host.end_pass()
    host.connect(11, 12)
    host.connect(12, 13)
    host.end_pass()
    assert set(host.members.ranks) == {11, 12, 13}


MONITORED = 4
TRAINING = "python3 train.py"


def monitored(*, argv: str = TRAINING, children: int = 1) -> Host:
    """Ranks by number, each of which has forked its training and waits."""
    host = Host()
    for rank in range(MONITORED):
        environ = {"RANK": str(rank), "WORLD_SIZE": str(MONITORED), "LOCAL_RANK": str(rank)}
        environ |= {"MASTER_PORT": "29500"}
        host.start(100 + rank, 1, TRAINING, **environ)
        for child in range(children):
            host.start(200 + rank + 10 * child, 100 + rank, argv, **environ)
    host.end_pass()
    return host


def connect_all(host: Host, first: int) -> None:
    for one in range(first, first + MONITORED):
        for other in range(one + 1, first + MONITORED):
            host.connect(one, other)
    host.end_pass()


def test_kinship__what_a_monitor_with_a_rank_forked_is_the_rank() -> None:
    host = monitored()
    assert set(range(200, 204)) <= set(host.members.connected)
    connect_all(host, 200)
    assert {pid: view.rank for pid, view in host.members.ranks.items()} == {
        200: 0,
        201: 1,
        202: 2,
        203: 3,
    }
    assert {host.roles()[pid] for pid in range(100, 104)} == {"launcher"}
    assert host.members.world_size == MONITORED


def test_kinship__a_monitored_rank_is_known_by_its_store_on_another_host() -> None:
    host = monitored()
    host.socket(200, ("10.0.0.1", 45000), ("10.0.0.2", 29500))
    host.end_pass()
    assert host.members.ranks.keys() & {100, 200} == {200}


def test_kinship__the_training_that_a_monitor_forks_again_is_the_rank() -> None:
    host = monitored()
    connect_all(host, 200)
    for rank in range(MONITORED):
        pid = Pid(200 + rank)
        gone = ProcessExit(host.now_ns, pid, 1, 0, core_dumped=False, comm="python3")
        host.members.leave(pid, gone, learns=False)
    host.end_pass()
    for rank in range(MONITORED):
        environ = dict(host.members.views[Pid(100 + rank)].seen.rank_environ)  # type: ignore[union-attr]
        host.start(300 + rank, 100 + rank, TRAINING, **environ)
    host.end_pass()
    connect_all(host, 300)
    assert {pid: view.rank for pid, view in host.members.ranks.items()} == {
        300: 0,
        301: 1,
        302: 2,
        303: 3,
    }
    assert sorted(host.members.supersede_former()) == [200, 201, 202, 203]


@pytest.mark.parametrize(
    ("argv", "children"),
    [("python3 serve.py", 1), (TRAINING, 2)],
    ids=["another program", "two loaders"],
)
def test_kinship__children_of_a_rank_that_are_connected_are_no_ranks(
    argv: str, children: int
) -> None:
    host = monitored(argv=argv, children=children)
    connect_all(host, 200)
    assert set(host.members.ranks) == {100, 101, 102, 103}


def test_kinship__the_loader_of_a_rank_that_is_connected_itself_is_no_rank() -> None:
    host = monitored()
    connect_all(host, 100)
    connect_all(host, 200)
    assert set(host.members.ranks) == {100, 101, 102, 103}


def test_kinship__what_a_fork_inherited_makes_it_no_rank() -> None:
    host = monitored()
    for one in range(100, 104):
        for other in range(one + 1, 104):
            host.connect(one, other, heirs={one + 100: 0})
    host.end_pass()
    assert set(host.members.ranks) == {100, 101, 102, 103}
