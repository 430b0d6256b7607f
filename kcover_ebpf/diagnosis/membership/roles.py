"""Roles of the processes of a job, from their names, environments and parents: rank, launcher, loader, helper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from posixpath import basename

from kcover_ebpf.diagnosis.membership.rank_numbers import place_of, rank_of
from kcover_ebpf.diagnosis.membership.started_ranks import (
    ancestors,
    heirs,
    numbers_of,
    shared_numbers,
    started_ranks,
)
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Membership, Role, program

_SHELLS = frozenset(
    {"sh", "bash", "dash", "zsh", "tini", "dumb-init", "env", "timeout", "nice", "sudo", "ip"}
)
_LAUNCHERS = frozenset(
    {
        "torchrun",
        "mpirun",
        "mpiexec",
        "orterun",
        "prterun",
        "orted",
        "prted",
        "srun",
        "horovodrun",
        "hydra_pmi_proxy",
    }
    | {"deepspeed", "accelerate", "raylet", "slurmstepd"}
)
_REMOTE = frozenset({"ssh", "rsh"})
"""Programs that connect to other hosts; they are ranks only if their environment says so."""
_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"}
    | {"deepspeed.launcher.launch", "accelerate.commands.launch", "horovod.runner.launch"}
)
_COMPILERS = frozenset(
    {
        "cc1",
        "cc1plus",
        "gcc",
        "g++",
        "cc",
        "c++",
        "clang",
        "clang++",
        "ld",
        "as",
        "collect2",
        "nvcc",
        "ptxas",
    }
    | {
        "cicc",
        "fatbinary",
        "cudafe++",
        "ninja",
        "make",
        "cmake",
        "ld.lld",
        "lld",
        "ld.gold",
        "hipcc",
        "ar",
    }
)
_HELPER_WORDS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "multiprocessing.semaphore_tracker",
)
_COMPILE_WORKER = "compile_worker"
SPAWNED = "--multiprocessing-fork"
"""Word in the command line of a child of Python's multiprocessing that was not forked."""
_HELPER = Membership(Role.HELPER, None, None, None)
"""Membership of a process that belongs to no known rank."""
PROGRAMS = _SHELLS | _LAUNCHERS | _REMOTE | _COMPILERS
"""Names of programs that have a known role."""
ROLE_WORDS = _LAUNCHER_MODULES | {SPAWNED}
ROLE_PARTS = (*_HELPER_WORDS, _COMPILE_WORKER)
"""Whole words of a command, and parts of words, that reveal a role as well."""


def classify(
    processes: Iterable[ProcessSeen],
    joined: Collection[Pid] = frozenset(),
    gone: Collection[Pid] = frozenset(),
    settled: Collection[Pid] = frozenset(),
) -> dict[Pid, Membership]:
    """Roles of all processes of one job. Those in `joined` are ranks by their behaviour; those in `gone` have ended.

    `settled`: processes that are connected to ranks. Another program with the number of one of them is its monitor.

    A rank is a process that was given its own number by the process that started it, or that has joined others like it
    (`Kinship`); a launcher that serves the store of several ranks is none. If there is neither, the rank is the topmost
    process with a rank number that is neither a shell around it nor a launcher. In a job without any rank number every
    topmost program counts as a rank; its number is the index of its pod, if it has one.
    """
    by_pid = {process.pid: process for process in processes}
    alike = {pid for pid in joined if pid in by_pid and not _starts_others(by_pid[pid])}
    chosen = started_ranks(by_pid, _starts_others) | alike
    numbers = numbers_of(chosen, by_pid, gone)
    roles = _assign(by_pid, numbers)
    living = {
        pid: member.rank
        for pid, member in roles.items()
        if member.role is Role.RANK and pid not in gone
    }
    again = shared_numbers(living, by_pid)
    known = _assign(by_pid, numbers | again) if again else roles
    known |= {
        pid: replace(known[pid], rank=None, world_size=None)
        for pid in _worlds_of_one({pid: known[pid] for pid in living}, by_pid)
    }
    ranks = {pid: known[pid] for pid in living}
    return known | dict.fromkeys(_namesakes(ranks, by_pid, settled), _HELPER)


def _namesakes(
    ranks: Mapping[Pid, Membership], by_pid: Mapping[Pid, ProcessSeen], settled: Collection[Pid]
) -> list[Pid]:
    """Ranks with the number of a connected rank that run another program and are not connected."""
    owners = {ranks[pid].rank: program(by_pid[pid]) for pid in settled if pid in ranks}
    return [
        pid
        for pid, member in ranks.items()
        if pid not in settled
        and not member.by_pod
        and owners.get(member.rank, program(by_pid[pid])) != program(by_pid[pid])
    ]


def _worlds_of_one(ranks: Mapping[Pid, Membership], by_pid: Mapping[Pid, ProcessSeen]) -> list[Pid]:
    """Trials of a sweep: programs of one name, each rank 0 of 1, so the number distinguishes none of them."""
    alone: dict[tuple[str, ...], list[Pid]] = defaultdict(list)
    for pid, member in ranks.items():
        if member.world_size == 1 and not member.by_pod:
            alone[program(by_pid[pid])].append(pid)
    return [pid for group in alone.values() if len(group) > 1 for pid in group]


def _starts_others(process: ProcessSeen) -> bool:
    return _is_launcher(process) or _is_shell(process)


def _assign(
    by_pid: Mapping[Pid, ProcessSeen], chosen: Mapping[Pid, tuple[int | None, int | None]]
) -> dict[Pid, Membership]:
    numbered = {pid: rank_of(process.rank_environ) for pid, process in by_pid.items()}
    anonymous = not chosen and all(rank is None for rank, _ in numbered.values())
    if anonymous:
        numbered = {pid: (place_of(process.rank_environ), None) for pid, process in by_pid.items()}
    above = ancestors(chosen, by_pid) - chosen.keys()
    roles: dict[Pid, Membership] = {}
    order = sorted(by_pid, key=lambda pid: _depth(pid, by_pid))
    for pid in heirs(above, order, by_pid):
        numbered[pid] = None, None
    for pid in order:
        if pid in chosen:
            rank, world = chosen[pid]
            roles[pid] = Membership(Role.RANK, rank, world, pid, joined=True)
        elif pid in above:
            role = Role.HELPER if _is_shell(by_pid[pid]) else Role.LAUNCHER
            roles[pid] = Membership(role, None, None, None)
        else:
            roles[pid] = _member(by_pid[pid], by_pid, roles, numbered, anonymous)
    return roles


def _member(
    process: ProcessSeen,
    by_pid: Mapping[Pid, ProcessSeen],
    roles: Mapping[Pid, Membership],
    numbered: Mapping[Pid, tuple[int | None, int | None]],
    anonymous: bool,
) -> Membership:
    rank, world = numbered[process.pid]
    by_pod = anonymous and rank is not None
    parent = roles.get(process.ppid)
    if parent is not None and parent.owner is not None:
        role = _child_role(process, by_pid[parent.owner])
        return Membership(role, parent.rank, parent.world_size, parent.owner, parent.by_pod)
    if _is_launcher(process):
        return Membership(Role.LAUNCHER, None, None, None)
    if _is_shell(process):
        # the number belongs to the program that it starts, but its own end is that rank's end too
        return Membership(Role.HELPER, rank, None, None, by_pod, rank is not None or anonymous)
    if _program(process) in _COMPILERS or _is_helper(process):
        return _HELPER
    reaches = _program(process) in _REMOTE
    if reaches and (anonymous or (parent is not None and parent.role is Role.LAUNCHER)):
        # a script that waits for the other hosts contacts them by it, before there is any rank
        return _HELPER
    if rank is None and not anonymous:
        return _HELPER
    return Membership(Role.RANK, rank, world, process.pid, by_pod)


def _child_role(process: ProcessSeen, owner_process: ProcessSeen) -> Role:
    if _program(process) in _COMPILERS or any(_COMPILE_WORKER in word for word in process.argv[:6]):
        return Role.COMPILER
    if _is_helper(process) or not process.argv:
        return Role.HELPER
    # a child that multiprocessing spawns is started by the full path of its interpreter
    same_program = process.argv[:1] == owner_process.argv[:1] or SPAWNED in process.argv
    return Role.LOADER if same_program else Role.HELPER


def _is_helper(process: ProcessSeen) -> bool:
    return any(word in part for part in process.argv for word in _HELPER_WORDS)


def _is_shell(process: ProcessSeen) -> bool:
    return _program(process) in _SHELLS


def _is_launcher(process: ProcessSeen) -> bool:
    words = process.argv[:4]
    if _program(process) in _LAUNCHERS or any(basename(word) in _LAUNCHERS for word in words[:2]):
        return True
    return any(word in _LAUNCHER_MODULES for word in words)


def _program(process: ProcessSeen) -> str:
    return basename(process.argv[0]) if process.argv else process.comm


def _depth(pid: Pid, by_pid: Mapping[Pid, ProcessSeen]) -> int:
    depth = 0
    while pid in by_pid and depth < 64:
        pid = by_pid[pid].ppid
        depth += 1
    return depth
