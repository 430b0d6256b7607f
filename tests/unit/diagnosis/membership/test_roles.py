"""Who is a rank: real command lines, and any process tree, however broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.membership.rank_numbers import RANK_ENVIRON, rank_of
from kcover_ebpf.diagnosis.membership.roles import classify
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Membership, Role

ENVIRONS = st.dictionaries(
    st.sampled_from(sorted(RANK_ENVIRON)), st.one_of(st.text(max_size=9), st.integers().map(str))
)
WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["python3", "train.py", "mpirun", "bash", "/usr/bin/gcc", "compile_worker"]),
)


def process(pid: int, ppid: int, command: str, rank: int | None = None) -> ProcessSeen:
    environ = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "2"}
    return ProcessSeen(0, Pid(pid), Pid(ppid), "comm", tuple(command.split()), environ)


TREES = st.lists(
    st.builds(
        ProcessSeen,
        boottime_ns=st.just(0),
        pid=st.integers(0, 9).map(Pid),
        ppid=st.integers(0, 11).map(Pid),
        comm=st.text(max_size=5),
        argv=st.lists(WORDS, max_size=4).map(tuple),
        rank_environ=ENVIRONS,
    ),
    max_size=9,
)


@pytest.mark.parametrize(
    ("environ", "reported"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"PMIX_RANK": "1"}, (1, None)),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "4"}, (1, 4)),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "8"}, (7, 8)),
        # torchrun below Slurm: its own variables count
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 8)),
        ({"RANK": "", "PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, (1, 2)),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "8"}, (None, None)),
        ({"RANK": "-1"}, (None, None)),
        ({"RANK": "0x1"}, (None, None)),
        ({"RANK": "²"}, (None, None)),
        ({"RANK": "9" * 5000}, (None, None)),
        ({"RANK": "1", "WORLD_SIZE": "0"}, (1, None)),
        ({"WORLD_SIZE": "8"}, (None, None)),
        ({"LOCAL_RANK": "1"}, (None, None)),
    ],
)
def test_rank_of(environ: dict[str, str], reported: tuple[int | None, int | None]) -> None:
    assert rank_of(environ) == reported


@given(ENVIRONS)
def test_rank_of__any_environment(environ: dict[str, str]) -> None:
    rank, size = rank_of(environ)
    assert rank is None or rank >= 0
    assert size is None or (size > 0 and rank is not None)


def roles(*processes_process: ProcessSeen) -> dict[int, tuple[str, int | None]]:
    return {
        pid: (membership.role.value, membership.rank)
        for pid, membership in classify(processes_process).items()
    }


def test_classify__a_torchrun_job_with_loaders_and_compilers() -> None:
    assert roles(
        process(1, 0, "bash run.sh"),
        process(2, 1, "/usr/bin/python3 /usr/bin/torchrun --nproc 2 train.py"),
        process(3, 2, "/usr/bin/python3 train.py", rank=0),
        process(4, 2, "/usr/bin/python3 train.py", rank=1),
        process(5, 3, "/usr/bin/python3 train.py", rank=0),
        process(6, 4, "/usr/bin/c++ -O2 kernel.cpp", rank=1),
        process(7, 6, "/usr/lib/gcc/cc1plus kernel.cpp", rank=1),
        process(8, 3, "python3 -m torch._inductor.compile_worker", rank=0),
        process(9, 3, "nvidia-smi", rank=0),
        process(
            10, 4, "/usr/bin/python3 -c from_multiprocessing.resource_tracker_import_main", rank=1
        ),
        process(11, 3, "", rank=0),
    ) == {
        1: ("helper", None),
        2: ("launcher", None),
        3: ("rank", 0),
        4: ("rank", 1),
        5: ("loader", 0),
        6: ("compiler", 1),
        7: ("compiler", 1),
        8: ("compiler", 0),
        9: ("helper", 0),
        10: ("helper", 1),
        11: ("helper", 0),
    }


def test_classify__a_shell_that_inherits_the_rank_is_not_the_rank() -> None:
    assert roles(
        process(1, 0, "mpirun -n 2 ./wrap"),
        process(2, 1, "/bin/sh ./wrap", rank=0),
        process(3, 2, "python3 train.py", rank=0),
    ) == {1: ("launcher", None), 2: ("helper", 0), 3: ("rank", 0)}


def test_classify__without_any_number_the_topmost_programs_are_ranks() -> None:
    assert roles(
        process(1, 0, "bash -c x"), process(2, 1, "python3 a.py"), process(3, 2, "python3 a.py")
    ) == {1: ("helper", None), 2: ("rank", None), 3: ("loader", None)}


def test_classify__how_a_launcher_reaches_other_hosts_is_no_rank() -> None:
    assert roles(
        process(1, 0, "mpirun -n 2 python3 a.py"), process(2, 1, "/usr/bin/ssh -x host orted")
    ) == {1: ("launcher", None), 2: ("helper", None)}


def test_classify__how_a_script_waits_for_other_hosts_is_no_rank() -> None:
    assert roles(process(1, 0, "sh -c x"), process(2, 1, "ssh worker-0 true")) == {
        1: ("helper", None),
        2: ("helper", None),
    }


def test_classify__beside_numbered_ranks_a_program_without_a_number_is_a_helper() -> None:
    found = roles(process(1, 0, "python3 tensorboard.py"), process(2, 0, "python3 a.py", rank=0))
    assert found == {1: ("helper", None), 2: ("rank", 0)}


def in_pod(pid: int, ppid: int, command: str, **environ: str) -> ProcessSeen:
    return ProcessSeen(0, Pid(pid), Pid(ppid), "comm", tuple(command.split()), environ)


@pytest.mark.parametrize(
    "environ",
    [
        {"JOB_COMPLETION_INDEX": "3"},
        {"LWS_WORKER_INDEX": "3"},
        {"PET_NODE_RANK": "3", "JOB_COMPLETION_INDEX": "0"},
        {"RANK": "", "JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "16"},
    ],
)
def test_classify__the_place_of_a_pod_is_the_rank_of_its_topmost_program(
    environ: dict[str, str],
) -> None:
    members = classify(
        [
            in_pod(1, 0, "sh -c train", **environ),
            in_pod(2, 1, "python3 a.py", **environ),
            in_pod(3, 2, "python3 a.py", **environ),
        ]
    )
    assert {pid: (member.role.value, member.rank) for pid, member in members.items()} == {
        1: ("helper", 3),
        2: ("rank", 3),
        3: ("loader", 3),
    }
    # a pod may hold several ranks, so it is not known how many there are
    assert {member.world_size for member in members.values()} == {None}
    assert all(member.by_pod for member in members.values())


def test_classify__the_rank_that_a_process_was_given_wins_over_the_place_of_its_pod() -> None:
    index = {"JOB_COMPLETION_INDEX": "1"}
    members = classify(
        [
            in_pod(1, 0, "python3 launch.py", **index),
            in_pod(2, 1, "python3 a.py", RANK="2", WORLD_SIZE="4", **index),
            in_pod(3, 1, "python3 a.py", RANK="3", WORLD_SIZE="4", **index),
        ]
    )
    assert {pid: (member.role.value, member.rank) for pid, member in members.items()} == {
        1: ("helper", None),
        2: ("rank", 2),
        3: ("rank", 3),
    }
    assert not any(member.by_pod for member in members.values())


def is_sound(membership: Membership, members: dict[Pid, Membership]) -> bool:
    if membership.owner is None:
        return membership.role in (Role.LAUNCHER, Role.HELPER) and (
            membership.rank is None or membership.wraps
        )
    owner = members[membership.owner]
    return (
        owner.role is Role.RANK
        and owner.owner == membership.owner
        and owner.rank == membership.rank
    )


@given(TREES)
def test_classify__any_tree_is_classified(tree: list[ProcessSeen]) -> None:
    members = classify(tree)
    assert members.keys() == {process_seen.pid for process_seen in tree}
    assert all(is_sound(member, members) for member in members.values())
    for pid, member in members.items():
        assert (member.role is Role.RANK) == (member.owner == pid)


@given(
    st.permutations(
        [process(1, 0, "torchrun"), process(2, 1, "python3 a.py", rank=0)]
        + [process(pid, pid - 1, "python3 a.py", rank=0) for pid in range(3, 9)]
    )
)
def test_classify__the_order_in_which_processes_were_seen_does_not_matter(
    tree: list[ProcessSeen],
) -> None:
    members = classify(tree)
    assert {pid for pid, member in members.items() if member.role is Role.RANK} == {2}
    assert {member.owner for pid, member in members.items() if pid > 2} == {2}


def test_classify__processes_that_are_each_others_parents_do_no_harm() -> None:
    members = classify([process(1, 2, "python3 a.py"), process(2, 1, "python3 a.py")])
    assert sorted(member.role.value for member in members.values()) == ["loader", "rank"]


def test_classify__a_launcher_that_serves_the_store_of_two_groups_is_no_rank() -> None:
    """As each of torchft's does: it exchanges data with the other, as ranks do."""
    launchers = [process(pid, 1, "python3 /usr/bin/torchrun train.py") for pid in (10, 20)]
    ranks = [process(pid + 1, pid, "python3 train.py", 0) for pid in (10, 20)]
    roles = classify([*launchers, *ranks], joined={Pid(pid) for pid in (10, 11, 20, 21)})
    found = {pid for pid, member in roles.items() if member.role is Role.RANK}
    assert found == {11, 21}
