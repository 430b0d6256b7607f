"""The position of a pod in its job, and the result of the check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NODE = "KCOVER_NODE_NAME"
"""Environment variable: name of the node of this pod."""
_INDEX = (
    "JOB_COMPLETION_INDEX",
    "PET_NODE_RANK",
    "NODE_RANK",
    "LWS_WORKER_INDEX",
    "VC_TASK_INDEX",
    "RANK",
)
_COUNT = ("PET_NNODES", "NNODES", "LWS_GROUP_SIZE", "WORLD_SIZE")
_FIRST = ("PET_MASTER_ADDR", "LWS_LEADER_ADDRESS", "MASTER_ADDR")


class Unknown(Exception):
    """The bandwidth cannot be measured; the message is the reason."""


@dataclass(frozen=True)
class PodPlace:
    """Position of this pod in its job, from the environment."""

    index: int
    count: int
    first: str
    """Name or address of the first pod."""


@dataclass(frozen=True)
class BandwidthOutcome:
    """Result of the check, sent to all pods."""

    text: str
    slow: tuple[int, ...] = ()
    """Indexes of the pods with slow nodes."""


def place_of(environment: Mapping[str, str]) -> PodPlace:
    """The position by the variables that the job's controller has set; raises `Unknown`."""
    first = next((environment[name] for name in _FIRST if environment.get(name)), "")
    if not first:
        raise Unknown(f"none of {', '.join(_FIRST)} is set")
    place = PodPlace(_number(environment, _INDEX), _number(environment, _COUNT), first)
    if place.count < 2 or place.index >= place.count:
        raise Unknown(f"this is pod {place.index} of {place.count}")
    return place


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int:
    text = next((environment[name] for name in names if environment.get(name)), "")
    if not text.isdecimal():
        raise Unknown(f"none of {', '.join(names)} is a number")
    return int(text)


def gpus() -> int:
    """GPUs of this pod; 1 if there are no device files to count."""
    return max(1, sum(path.name[6:].isdecimal() for path in Path("/dev").glob("nvidia*")))
