"""What the lines of a tape hold: a header, facts, and the moments at which the job was asked something."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping

from kcover_ebpf.api.codec import Codec, Omit
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import ThreadReading
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.settings import Act, Policy

SCHEMA = "kcover.io/tape/v1"
MOST_LINE_BYTES = 1 << 20
"""Of one line, written or read. The longest fact lists the libraries of a process: 60 bytes for each of some 1,000."""
TAPE = Codec(key=str, omit=Omit.DEFAULTS)
"""The form of a line: fields keep their names, and those that have their default are left out."""
NAMELESS = "job"
"""What a job is called whose names were left out."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line."""

    schema: str
    version: str
    """Of the program that recorded it."""
    machine: str
    """As `os.uname().machine` says it: the numbers of system calls depend on it."""
    policy: Policy
    act: Act
    names: bool
    """Names of programs, files and addresses were kept."""
    job: str = NAMELESS


@dataclass(frozen=True, slots=True)
class Start:
    """The job began to be watched (again, after a restart): from here on nothing of before counts."""

    time: float
    """Unix seconds."""
    unix_offset_s: float
    """Unix time minus boottime."""
    restart: int = 0
    pid: int | None = None
    world_size: int | None = None
    unobserved: tuple[str, ...] = ()
    """What no probe could see on the host."""


@dataclass(frozen=True, slots=True)
class Look:
    """The job was asked which threads are to be read."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The job was asked whether its collective library is to be asked."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The job was judged."""

    unix_offset_s: float
    """Unix time minus boottime."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What the judgement before it called for was put off until the next one: the ranks' stacks were being read."""


@dataclass(frozen=True, slots=True)
class End:
    """The run was over."""

    time: float
    """Unix seconds."""
    reason: str
    exit_code: int
    job_code: int | None = None
    restart_count: int = 0
    duration_s: float = 0.0
    left_out_count: int = 0
    """Facts too long for a line."""


Mark = Start | Look | Ask | Judge | Hold | End
Entry = Fact | Mark


def kind_of(type_: type) -> str:
    """`ThreadSample` as `thread_sample`."""
    if type_ is ThreadReading:
        return "inspection"  # what it was called when the first tapes were recorded
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type_.__name__).lower()


FACTS: Mapping[str, type] = {kind_of(arg): arg for arg in typing.get_args(Fact)}
MARKS: Mapping[str, type] = {kind_of(arg): arg for arg in typing.get_args(Mark)}
