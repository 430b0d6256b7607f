"""The number that a rank was given, by its environment, its command line or its pod; and the missing numbers.

Sources of the variables: torchrun (RANK, WORLD_SIZE), Open MPI (OMPI_COMM_WORLD_*), PMIx and PMI, Horovod over gloo,
Slurm, JAX, Paddle. Lightning's own launcher sets LOCAL_RANK, NODE_RANK and WORLD_SIZE for the processes that it starts,
and none for the first. Kubernetes' controllers set the pod's place in the gang, which is the rank of its topmost
program if that has no other: batch Job (JOB_COMPLETION_INDEX), LeaderWorkerSet, Trainer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

# (rank, world size), the most specific source first: a launcher's own variables outlive the ones
# around it
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("PROCESS_ID", "NUM_PROCESSES"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"),
)
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_LOCAL_RANK")
INDEX = "JOB_COMPLETION_INDEX"
# A gang may have as many ranks in each pod as it likes, so they say nothing about the world's size.
_POD_VARIABLES = ("PET_NODE_RANK", "LWS_WORKER_INDEX", INDEX)
_NODE = "NODE_RANK"
RECORDER_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
RECORDER_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Beginnings of the paths at which PyTorch's flight recorder listens and writes; the first that is set counts."""
INSPECTOR_FOLDER = "NCCL_INSPECTOR_DUMP_DIR"
"""The variable with the folder that NCCL Inspector writes to."""
MOST_RANKS = 1 << 16
"""Largest world that is considered: its size is a claim of a program's environment."""
_RESTARTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
"""Variables of torchrun: how often it has restarted its ranks, and how often it may."""
_LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"
"""Variable by which the replica groups of torchft find each other."""
RANK_ENVIRON = frozenset(
    {name for pair in _RANK_VARIABLES for name in pair}
    | set(_POD_VARIABLES)
    | set(_LOCAL_SIZES)
    | set(_LOCAL_RANKS)
    | {_NODE, "MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "NCCL_RAS_ADDR"}
    | {RECORDER_PIPE, *RECORDER_FILES, *_RESTARTS, _LIGHTHOUSE, INSPECTOR_FOLDER}
)
"""The only environment variables ever read from a watched process."""
_IDENTITY = (*(name for pair in _RANK_VARIABLES for name in pair), *_LOCAL_RANKS)
_OPTIONS = ("rank", "local-rank", "process-id", "task-index")
"""Options by which programs take a rank number; the first that all ranks of a job have is used."""
_SIZE_OPTIONS = ("world-size",)
_NAMES = frozenset(_OPTIONS + _SIZE_OPTIONS)


def rank_of(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(rank, world size) in an environment; None for each that is not validly set."""
    for rank_name, size_name in _RANK_VARIABLES:
        rank = _number(environ.get(rank_name))
        if rank is not None:
            size = _number(environ.get(size_name))
            return rank, size or None
    return None, None


def local_size_of(environ: Mapping[str, str]) -> int | None:
    """Number of ranks that the launcher started on this host, by an environment; None if not set."""
    sizes = (_number(environ.get(name)) for name in _LOCAL_SIZES)
    return next((size for size in sizes if size), None)


def local_rank_of(environ: Mapping[str, str]) -> int | None:
    """Number among the ranks of this host, by an environment; None if not set."""
    numbers = (_number(environ.get(name)) for name in _LOCAL_RANKS)
    return next((number for number in numbers if number is not None), None)


def restarts_left(environ: Mapping[str, str]) -> int:
    """How often its launcher will still restart a failed rank; 0 if it will not, or does not say."""
    done, most = (_number(environ.get(name)) for name in _RESTARTS)
    return max(0, most - done) if done is not None and most is not None else 0


def lighthouse_of(environ: Mapping[str, str]) -> str | None:
    """Address of the lighthouse of torchft in the environment of a rank; None if not set."""
    return environ.get(_LIGHTHOUSE) or None


def place_of(environ: Mapping[str, str]) -> int | None:
    """Index of the pod in its gang, set in the environment of each of its processes; None without one."""
    numbers = (_number(environ.get(name)) for name in _POD_VARIABLES)
    return next((number for number in numbers if number is not None), None)


def identity_of(environ: Mapping[str, str]) -> tuple[str | None, ...]:
    """All variables that identify a rank; equal to those of the parent if they were only inherited."""
    return tuple(environ.get(name) for name in _IDENTITY)


def is_one_process(environ: Mapping[str, str]) -> bool:
    """True if an environment contains the number of one process of a host, not of a node or a pod."""
    return rank_of(environ)[0] is not None and local_rank_of(environ) is not None


def by_node(environ: Mapping[str, str], local: int, local_size: int) -> tuple[int, int | None]:
    """(rank, world size) of the process with local rank `local`, if each node has `local_size` ranks."""
    node = _number(environ.get(_NODE)) or 0
    return node * local_size + local, _number(environ.get("WORLD_SIZE")) or None


def by_options(commands: Sequence[Sequence[str]]) -> list[int] | None:
    """Rank numbers on the command lines of the ranks of one host; None unless each has a different one."""
    for option in _OPTIONS:
        numbers = [_option(command, option) for command in commands]
        found = [number for number in numbers if number is not None]
        if len(set(found)) == len(commands):
            return found
    return None


def size_by_options(command: Sequence[str]) -> int | None:
    """World size on a command line; None without one."""
    sizes = (_option(command, option) for option in _SIZE_OPTIONS)
    return next((size for size in sizes if size), None)


def is_number(word: str) -> bool:
    """True for a word of a command line that may give a program its number."""
    option, equals, value = word.partition("=")
    if not option.startswith("-"):
        return _number(word) is not None
    named = option.lstrip("-").replace("_", "-") in _NAMES
    return named and (not equals or _number(value) is not None)


def _option(command: Iterable[str], name: str) -> int | None:
    # --local-rank 1, --local_rank=1, -rank 1
    words = iter(command)
    for word in words:
        option, _, value = word.partition("=")
        if option.startswith("-") and option.lstrip("-").replace("_", "-") == name:
            return _number(value or next(words, None))
    return None


def _number(text: str | None) -> int | None:
    return (
        int(text)
        if text is not None and text.isascii() and text.isdigit() and len(text) < 8
        else None
    )


def absent(present: Collection[int], size: int, local_size: int | None = None) -> list[int]:
    """Numbers missing from `present` in a world of `size` ranks; sorted.

    With `local_size` only those of the host with the lowest rank present: most launchers number the ranks of a host
    consecutively.
    """
    first = 0 if local_size is None else min(present, default=0) // local_size * local_size
    count = size if local_size is None else local_size
    return sorted(set(range(first, first + min(count, MOST_RANKS))) - set(present))


def lost_before_trace(rank: int, present_count: int, size: int | None, where: str) -> str:
    """Reason for a missing rank in a job that only a trace saw. `where`: "on this host", where all ranks may be."""
    return (
        f"rank {rank} is missing: {present_count} of {size} ranks run {where}, "
        "and it ended before this trace, or never started"
    )
