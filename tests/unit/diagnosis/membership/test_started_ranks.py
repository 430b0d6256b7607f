"""Ranks that a program starts itself: process trees as the real frameworks make them."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.membership.roles import classify
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Role

NODE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
TASK = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
SPAWN = "/usr/bin/python3 -c spawn_main(pipe_handle={}) --multiprocessing-fork"


def process(pid: int, ppid: int, command: str, **environ: str) -> ProcessSeen:
    return ProcessSeen(0, Pid(pid), Pid(ppid), "python3", tuple(command.split()), environ)


def ranks(
    *processes_process: ProcessSeen, joined: set[int] | None = None, gone: set[int] | None = None
) -> dict[int, tuple[int | None, int | None]]:
    """The ranks, by pid, with number and world size."""
    members = classify(
        processes_process, {Pid(p) for p in joined or ()}, {Pid(p) for p in gone or ()}
    )
    return {
        pid: (member.rank, member.world_size)
        for pid, member in members.items()
        if member.role is Role.RANK
    }


def test_classify__lightning_starts_all_but_the_first_rank() -> None:
    environ = {"NODE_RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    assert ranks(
        process(10, 1, "python3 train.py"),
        process(11, 10, "/usr/bin/python3 /src/train.py", LOCAL_RANK="1", **environ),
        process(12, 10, "/usr/bin/python3 /src/train.py", LOCAL_RANK="2", **environ),
        # what the first one starts later has its number
        process(13, 10, SPAWN.format(7), LOCAL_RANK="0", **environ),
        process(14, 11, SPAWN.format(8), LOCAL_RANK="1", **environ),
    ) == {10: (0, 3), 11: (1, 3), 12: (2, 3)}


def test_classify__lightning_on_the_second_of_two_nodes() -> None:
    environ = {"NODE_RANK": "1", "WORLD_SIZE": "4"}
    assert ranks(
        process(10, 1, "python3 train.py", **environ),
        process(11, 10, "python3 train.py", LOCAL_RANK="1", **environ),
    ) == {10: (2, 4), 11: (3, 4)}


def test_classify__lightning_below_a_slurm_task() -> None:
    environ = {**TASK, "NODE_RANK": "0", "WORLD_SIZE": "2"}
    assert ranks(
        process(10, 1, "python3 train.py", **TASK),
        process(11, 10, "python3 /src/train.py", LOCAL_RANK="1", **environ),
    ) == {10: (0, 2), 11: (1, 2)}


@pytest.mark.parametrize("around", [{}, NODE, TASK], ids=["nothing", "PyTorchJob v1", "srun"])
def test_classify__what_a_spawned_rank_starts_has_the_number_that_the_rank_set_itself(
    around: dict[str, str],
) -> None:
    tracker = "python3 -c multiprocessing.resource_tracker"
    own = {**around, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    tree = (
        process(10, 1, "python3 train.py", **around),
        process(11, 10, SPAWN.format(7), **around),
        process(12, 10, SPAWN.format(9), **around),
        process(13, 12, tracker, **own),
        process(14, 12, SPAWN.format(11), **own),
        process(15, 11, "wandb-service", **{**own, "RANK": "0", "LOCAL_RANK": "0"}),
    )
    assert ranks(*tree, joined={11, 12}) == {11: (None, None), 12: (None, None)}
    assert not around or not {13, 14, 15} & set(ranks(*tree)), "before they joined"


def test_classify__what_a_rank_starts_does_not_take_its_place_where_it_sets_its_variables_itself() -> (
    None
):
    assert ranks(
        process(10, 1, "python3 train.py", SLURM_PROCID="3"),
        process(11, 10, "wandb-service", RANK="3", LOCAL_RANK="0", WORLD_SIZE="8"),
    ) == {10: (3, None)}


@pytest.mark.parametrize("around", [NODE, TASK], ids=["PyTorchJob v1", "srun"])
def test_classify__a_launcher_of_unknown_name_has_the_number_of_its_node(
    around: dict[str, str],
) -> None:
    own = {**around, "WORLD_SIZE": "4"}
    assert ranks(
        process(10, 1, "python3 -m start train.py", **around),
        process(11, 10, "python3 train.py", **{**own, "RANK": "2", "LOCAL_RANK": "0"}),
        process(12, 10, "python3 train.py", **{**own, "RANK": "3", "LOCAL_RANK": "1"}),
        process(13, 12, "python3 train.py", **{**own, "RANK": "3", "LOCAL_RANK": "1"}),
    ) == {11: (2, 4), 12: (3, 4)}


def test_classify__what_a_rank_starts_with_a_smaller_world_is_its_own() -> None:
    evaluation = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    assert ranks(
        process(10, 1, "python3 train.py", RANK="1", WORLD_SIZE="2"),
        process(11, 10, "python3 evaluate.py", **evaluation),
    ) == {10: (1, 2)}


def test_classify__what_a_rank_of_a_launcher_starts_is_its_own() -> None:
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    engine = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    assert ranks(
        process(9, 1, "torchrun train.py"),
        process(10, 9, "python3 train.py", **rank),
        process(11, 10, "python3 serve.py", **engine),
    ) == {10: (0, 2)}


def test_classify__spawned_ranks_are_known_once_they_joined_each_other() -> None:
    tree = (
        process(10, 1, "python3 train.py", **NODE),
        process(11, 10, SPAWN.format(7), **NODE),
        process(12, 10, SPAWN.format(9), **NODE),
        process(13, 11, SPAWN.format(11), **NODE),
    )
    assert ranks(*tree) == {10: (1, 2)}
    assert ranks(*tree, joined={11, 12}) == {11: (None, None), 12: (None, None)}
    roles = classify(tree, {Pid(11), Pid(12)})
    assert roles[Pid(10)].role is Role.LAUNCHER
    assert roles[Pid(13)].role is Role.LOADER
    assert roles[Pid(13)].owner == 11


def test_classify__the_numbers_of_joined_ranks_are_taken_from_their_command_lines() -> None:
    assert ranks(
        process(10, 1, "python3 start.py"),
        process(11, 10, "python3 train.py --local_rank=1"),
        process(12, 10, "python3 train.py --local_rank=0"),
        joined={11, 12},
    ) == {11: (1, None), 12: (0, None)}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("--rank 1 --world-size 2", "--rank 0 --world-size 2", {11: (1, 2), 12: (0, 2)}),
        ("--local-rank=1", "--local_rank 0", {11: (1, None), 12: (0, None)}),
        ("-task_index 3", "-task_index 4", {11: (3, None), 12: (4, None)}),
        # the rank of a low-rank adapter
        ("--rank 16", "--rank 16", {11: (None, None), 12: (None, None)}),
        ("--rank 1", "", {11: (None, None), 12: (None, None)}),
        ("--rank", "--rank x", {11: (None, None), 12: (None, None)}),
    ],
)
def test_classify__a_shell_loop(
    first: str, second: str, expected: dict[int, tuple[int | None, int | None]]
) -> None:
    assert (
        ranks(
            process(10, 1, "bash start.sh"),
            process(11, 10, f"python3 train.py {first}"),
            process(12, 10, f"python3 train.py {second}"),
        )
        == expected
    )


def test_classify__the_only_program_of_a_host_may_use_the_word_for_something_else() -> None:
    assert ranks(process(11, 1, "python3 tune.py --rank 16")) == {11: (None, None)}


def test_classify__a_shell_loop_in_a_slurm_task_does_not_have_the_number_of_the_task() -> None:
    tree = (
        process(10, 1, "bash start.sh", **TASK),
        process(11, 10, "python3 train.py --rank 0", **TASK),
        process(12, 10, "python3 train.py --rank 1", **TASK),
    )
    assert ranks(*tree) == {11: (0, None), 12: (1, None)}
    bare = (
        tree[0],
        *(process(process_seen.pid, 10, "python3 train.py", **TASK) for process_seen in tree[1:]),
    )
    assert ranks(*bare) == {11: (None, None), 12: (None, None)}


def test_classify__a_rank_that_a_script_starts_again_keeps_the_number_of_its_task() -> None:
    tree = (
        process(10, 1, "bash start.sh", **TASK),
        process(11, 10, "python3 train.py", **TASK),
        process(12, 10, "python3 train.py", **TASK),
    )
    assert ranks(*tree, gone={11}) == {11: (0, 1), 12: (0, 1)}


def test_classify__what_a_script_runs_beside_a_rank_does_not_take_its_number_away() -> None:
    assert ranks(
        process(10, 1, "bash start.sh", **TASK),
        process(11, 10, "python3 train.py", **TASK),
        process(12, 10, "python3 -m exporter", **TASK),
    ) == {11: (0, 1), 12: (0, 1)}


def test_classify__ranks_of_horovod_over_gloo() -> None:
    environ = {"HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}
    assert ranks(
        process(10, 1, "python3 /usr/bin/horovodrun -np 2 python3 train.py"),
        process(11, 10, "/bin/sh -c train", HOROVOD_RANK="1", **environ),
        process(12, 11, "python3 train.py", HOROVOD_RANK="1", **environ),
    ) == {12: (1, 2)}


def test_classify__processes_that_are_each_others_parents_do_no_harm_to_joined_ones() -> None:
    tree = (process(10, 11, "python3 a.py"), process(11, 10, "python3 a.py"))
    assert ranks(*tree, joined={10, 11}) == {10: (None, None), 11: (None, None)}


def test_classify__a_rank_that_ended_does_not_change_the_numbers_of_the_others() -> None:
    environ = {"NODE_RANK": "1", "WORLD_SIZE": "6"}
    tree = (
        process(10, 1, "python3 train.py", **environ),
        process(11, 10, "python3 train.py", LOCAL_RANK="1", **environ),
        process(12, 10, "python3 train.py", LOCAL_RANK="2", **environ),
    )
    assert ranks(*tree, gone={11}) == {10: (3, 6), 11: (4, 6), 12: (5, 6)}


def test_classify__who_takes_the_place_of_a_rank_has_its_number() -> None:
    tree = (
        process(10, 1, "python3 start.py"),
        process(11, 10, "python3 train.py --rank 0"),
        process(12, 10, "python3 train.py --rank 1"),
        process(13, 10, "python3 train.py --rank 1"),
    )
    found = ranks(*tree, joined={11, 12, 13}, gone={12})
    assert {pid: found[pid] for pid in (11, 13)} == {11: (0, None), 13: (1, None)}
