"""Who is a rank: roles of the processes of a job, from what they are called and what their environment says.

Sources of the variables: torchrun (RANK, WORLD_SIZE), Open MPI (OMPI_COMM_WORLD_*), PMIx and PMI,
Slurm, JAX, Paddle. What Kubernetes' controllers tell a pod is its place in the gang, the rank of its
topmost program where that gives no other: batch Job (JOB_COMPLETION_INDEX), LeaderWorkerSet, Trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from posixpath import basename

from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid

# (rank, world size), the most specific source first: a launcher's own variables outlive the ones
# around it
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("PROCESS_ID", "NUM_PROCESSES"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
)
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
INDEX = "JOB_COMPLETION_INDEX"
# A gang may have as many ranks in each pod as it likes, so they say nothing about the world's size.
_POD_VARIABLES = ("PET_NODE_RANK", "LWS_WORKER_INDEX", INDEX)
RECORDER_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
RECORDER_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where PyTorch's flight recorder listens and writes, as beginnings of paths; the first that is set counts."""
RANK_ENVIRON = frozenset(
    {name for pair in _RANK_VARIABLES for name in pair}
    | set(_POD_VARIABLES)
    | set(_LOCAL_SIZES)
    | {
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "JAX_COORDINATOR_ADDRESS",
        "NCCL_RAS_ADDR",
        RECORDER_PIPE,
        *RECORDER_FILES,
    }
)
"""The only environment variables ever read from a watched process."""

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
"""What reaches other hosts; it is a rank only where its environment says so."""
_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"}
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
_SPAWNED = "--multiprocessing-fork"
_COMPILE_WORKER = "compile_worker"
PROGRAMS = _SHELLS | _LAUNCHERS | _REMOTE | _COMPILERS
"""Names of programs by which a role is known."""
TELLING_WORDS = _LAUNCHER_MODULES | {_SPAWNED}
TELLING_PARTS = (*_HELPER_WORDS, _COMPILE_WORKER)
"""Whole words of a command, and parts of words, that tell a role as well."""


class Role(Enum):
    """What a process is for in its job."""

    RANK = "rank"
    LOADER = "loader"
    """A child of a rank that runs the rank's own program: data loader worker, checkpoint writer."""
    COMPILER = "compiler"
    LAUNCHER = "launcher"
    HELPER = "helper"
    """Anything else."""
    UNKNOWN = HELPER
    """What a newer agent reports of which this version does not know the word."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The role of one process.

    `rank` is that of the rank it belongs to, or of the one it wraps (a shell around it); None if it belongs to
    none, or if ranks have no numbers.
    """

    role: Role
    rank: int | None
    world_size: int | None
    owner: Pid | None
    """The rank process it belongs to: itself for a rank, None outside any rank."""
    by_pod: bool = False
    """`rank` is the place of its pod: no process of the job was given a number of its own."""
    wraps: bool = False
    """It is a shell around a rank, or around what may be one where ranks have no numbers."""


def rank_of(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(rank, world size) given by an environment; None where nothing valid is said."""
    for rank_name, size_name in _RANK_VARIABLES:
        rank = _number(environ.get(rank_name))
        if rank is not None:
            size = _number(environ.get(size_name))
            return rank, size or None
    return None, None


def local_size_of(environ: Mapping[str, str]) -> int | None:
    """Ranks that the launcher started on this host, given by an environment; None where it does not say."""
    sizes = (_number(environ.get(name)) for name in _LOCAL_SIZES)
    return next((size for size in sizes if size), None)


def place_of(environ: Mapping[str, str]) -> int | None:
    """The place of the pod in its gang, given by the environment of each of its processes; None without one."""
    numbers = (_number(environ.get(name)) for name in _POD_VARIABLES)
    return next((number for number in numbers if number is not None), None)


def _number(text: str | None) -> int | None:
    return (
        int(text)
        if text is not None and text.isascii() and text.isdigit() and len(text) < 8
        else None
    )


def classify(processes: Iterable[ProcessSeen]) -> dict[Pid, Membership]:
    """Roles of all processes of one job.

    A rank is the topmost process with a rank number that is neither a shell around it nor a
    launcher. In a job without any rank number every topmost program counts as a rank; its number is the
    place of its pod, if it has one.
    """
    by_pid = {process.pid: process for process in processes}
    numbered = {pid: rank_of(process.rank_environ) for pid, process in by_pid.items()}
    anonymous = all(rank is None for rank, _ in numbered.values())
    if anonymous:
        numbered = {pid: (place_of(each.rank_environ), None) for pid, each in by_pid.items()}
    roles: dict[Pid, Membership] = {}
    for pid in sorted(by_pid, key=lambda each: _depth(each, by_pid)):
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
        # the number belongs to what it starts, but its own end is that rank's end too
        return Membership(Role.HELPER, rank, None, None, by_pod, rank is not None or anonymous)
    if _program(process) in _COMPILERS or _is_helper(process):
        return Membership(Role.HELPER, None, None, None)
    reaches = _program(process) in _REMOTE
    if reaches and (anonymous or (parent is not None and parent.role is Role.LAUNCHER)):
        # a script that waits for the other hosts asks them by it, before there is any rank
        return Membership(Role.HELPER, None, None, None)
    if rank is None and not anonymous:
        return Membership(Role.HELPER, None, None, None)
    return Membership(Role.RANK, rank, world, process.pid, by_pod)


def _child_role(process: ProcessSeen, owner: ProcessSeen) -> Role:
    if _program(process) in _COMPILERS or any(_COMPILE_WORKER in word for word in process.argv[:6]):
        return Role.COMPILER
    if _is_helper(process) or not process.argv:
        return Role.HELPER
    # a child that multiprocessing spawns is started by the full path of its interpreter
    same_program = process.argv[:1] == owner.argv[:1] or _SPAWNED in process.argv
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
