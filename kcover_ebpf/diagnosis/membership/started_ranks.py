"""Ranks below the topmost process: those that a program started itself, and their numbers.

`mp.spawn`, Lightning's `ddp`, Ray Train and a shell loop start the ranks of a host without a launcher that is known by
its name. The program around them may have a number all the same: that of a node (PyTorchJob v1, srun with one task a
node), which every process below inherits and which belongs to none of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from posixpath import basename

from kcover_ebpf.diagnosis.membership.rank_numbers import (
    by_node,
    by_options,
    identity_of,
    is_one_process,
    local_rank_of,
    rank_of,
    size_by_options,
)
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import program

Number = tuple[int | None, int | None]
"""(rank, world size); None for each that is unknown."""
_Tree = Mapping[Pid, ProcessSeen]
_DEEPEST = 64


def ancestors(pids: Iterable[Pid], by_pid: _Tree) -> set[Pid]:
    """All processes of the job that are ancestors of these."""
    found: set[Pid] = set()
    for pid in pids:
        above = by_pid[pid].ppid
        for _ in range(_DEEPEST):
            if above not in by_pid or above in found:
                break
            found.add(above)
            above = by_pid[above].ppid
    return found


def heirs(above: Collection[Pid], order: Iterable[Pid], by_pid: _Tree) -> set[Pid]:
    """Processes that inherited their number from one of those `above` ranks. `order`: parents before children."""
    found = set(above)
    for pid in order:
        if by_pid[pid].ppid in found and not _has_own_identity(by_pid[pid], by_pid):
            found.add(pid)
    return found


def started_ranks(by_pid: _Tree, starts_others: Callable[[ProcessSeen], bool]) -> set[Pid]:
    """Processes that their starter gave a number each, if it has the number of a node itself, or is rank 0 itself.

    `starts_others`: true for launchers and shells, whose children are ranks by another rule.
    """
    children: dict[Pid, list[ProcessSeen]] = defaultdict(list)
    for process in by_pid.values():
        children[process.ppid].append(process)
    found: set[Pid] = set()
    for pid, below in children.items():
        starter = by_pid.get(pid)
        if starter is not None and not starts_others(starter):
            found |= _numbered(starter, below) or _by_local_rank(starter, below)
    return found


def _numbered(starting_process: ProcessSeen, below: Sequence[ProcessSeen]) -> set[Pid]:
    # a sub-job of a rank, such as an evaluation, has its own, smaller world than the rank's
    rank, world = outer = rank_of(starting_process.rank_environ)
    if rank is None or is_one_process(starting_process.rank_environ):
        return set()
    given = {
        process.pid: number
        for process in below
        if is_one_process(process.rank_environ)
        # the second of a host cannot have the number of the host
        and (
            (number := rank_of(process.rank_environ)) != outer
            or not local_rank_of(process.rank_environ)
        )
    }
    numbers = {number for number, _ in given.values()}
    large = all((size or 0) >= (world or 1) for _, size in given.values())
    # a rank may set its variables itself, and all its children inherit them: then there is only one number
    return set(given) if large and 1 < len(numbers) == len(given) else set()


def _by_local_rank(starting_process: ProcessSeen, below: Sequence[ProcessSeen]) -> set[Pid]:
    # Lightning's first process is rank 0 and starts 1 to n - 1; it was not started with a LOCAL_RANK itself
    environ = starting_process.rank_environ
    if local_rank_of(environ) is not None:
        return set()
    inherited, script = rank_of(environ)[0], _script(starting_process)
    local = {
        process.pid: number
        for process in below
        if (number := local_rank_of(process.rank_environ))
        and rank_of(process.rank_environ)[0] == inherited
        and _script(process) == script
    }
    if not local or sorted(local.values()) != list(range(1, len(local) + 1)):
        return set()
    return {starting_process.pid, *local}


def _script(process: ProcessSeen) -> str:
    # the first process may have been started with options of the interpreter
    return next((basename(word) for word in process.argv[1:] if not word.startswith("-")), "")


def numbers_of(
    chosen: Collection[Pid], by_pid: _Tree, gone: Collection[Pid] = ()
) -> dict[Pid, Number]:
    """The numbers of these ranks; (None, None) for siblings unless every one of them has its own.

    Processes in `gone` may have been replaced: then they share their numbers with their replacements.
    """
    found: dict[Pid, Number] = {}
    groups: dict[Pid, list[ProcessSeen]] = defaultdict(list)
    for pid in sorted(chosen):
        groups[by_pid[pid].ppid].append(by_pid[pid])
    for starter, group in groups.items():
        # a rank that started other ranks belongs to those that it started
        outer = [process for process in group if process.pid not in groups]
        first = by_pid[starter] if starter in chosen else None
        numbers = _numbers(outer, first, by_pid)
        if not _are_unique(numbers):
            living = [process for process in outer if process.pid not in gone]
            again = _numbers(living, first, by_pid)
            numbers |= again if _are_unique(again) else {}
        found |= numbers
    return found


def _numbers(
    group: Sequence[ProcessSeen], first_process: ProcessSeen | None, by_pid: _Tree
) -> dict[Pid, Number]:
    by_environ = _by_environ(group, first_process, by_pid) or _by_monitor(group, by_pid)
    return by_environ or _by_commands(group, first_process)


def _by_environ(
    group: Sequence[ProcessSeen], first_process: ProcessSeen | None, by_pid: _Tree
) -> dict[Pid, Number]:
    environs = {
        process.pid: process.rank_environ for process in group if _has_own_identity(process, by_pid)
    }
    if not environs or len(environs) < len(group):
        return {}
    numbers: dict[Pid, Number] = {pid: rank_of(environ) for pid, environ in environs.items()}
    if first_process is None and _are_unique(numbers):
        return numbers
    size = len(group) + (first_process is not None)
    local = {pid: local_rank_of(environ) for pid, environ in environs.items()}
    numbers = {
        pid: by_node(environs[pid], place, size)
        for pid, place in local.items()
        if place is not None
    }
    if first_process is not None:
        numbers[first_process.pid] = by_node(next(iter(environs.values())), 0, size)
    return numbers if len(numbers) == size and _are_unique(numbers) else {}


def _by_monitor(group: Sequence[ProcessSeen], by_pid: _Tree) -> dict[Pid, Number]:
    """The number of a program that forked a single rank and watches it."""
    parent = by_pid.get(group[0].ppid) if len(group) == 1 else None
    if parent is None or not is_numbered_fork(group[0], parent):
        return {}
    return {group[0].pid: rank_of(parent.rank_environ)}


def is_numbered_fork(child_process: ProcessSeen, parent_process: ProcessSeen) -> bool:
    """True for a process that runs its parent's program with its parent's number."""
    return (
        bool(child_process.argv)
        and child_process.argv == parent_process.argv
        and rank_of(child_process.rank_environ)[0] is not None
        and identity_of(child_process.rank_environ) == identity_of(parent_process.rank_environ)
    )


def _has_own_identity(process: ProcessSeen, by_pid: _Tree) -> bool:
    parent = by_pid.get(process.ppid)
    inherited = parent is not None and (
        identity_of(parent.rank_environ) == identity_of(process.rank_environ)
    )
    return not inherited


def _are_unique(numbers: Mapping[Pid, Number]) -> bool:
    known = {rank for rank, _ in numbers.values() if rank is not None}
    return len(known) == len(numbers)


def _by_commands(
    group: Sequence[ProcessSeen], first_process: ProcessSeen | None
) -> dict[Pid, Number]:
    everyone = [*group, *([first_process] if first_process is not None else [])]
    numbers = by_options([process.argv for process in everyone]) if len(everyone) > 1 else None
    sizes = [size_by_options(process.argv) for process in everyone]
    known: Sequence[int | None] = numbers or [None] * len(everyone)
    return {
        process.pid: (rank, size if rank is not None else None)
        for process, rank, size in zip(everyone, known, sizes, strict=True)
    }


def shared_numbers(ranks: Mapping[Pid, int | None], by_pid: _Tree) -> dict[Pid, Number]:
    """Numbers for ranks that have none, or share an inherited one; empty if nothing changes.

    `ranks`: the living ones, with their numbers. A shell loop inside a Slurm task starts each of its ranks with the
    number of the task.
    """
    if len(ranks) > 1 and all(number is None for number in ranks.values()):
        found = _by_commands([by_pid[pid] for pid in ranks], None)
        return found if _are_unique(found) else {}
    groups: dict[tuple[object, ...], list[ProcessSeen]] = defaultdict(list)
    for pid, number in ranks.items():
        process = by_pid[pid]
        if number is not None and process.ppid in by_pid and not _has_own_identity(process, by_pid):
            groups[process.ppid, program(process), number].append(process)
    shared = (group for group in groups.values() if len(group) > 1)
    return {pid: number for group in shared for pid, number in _by_commands(group, None).items()}
