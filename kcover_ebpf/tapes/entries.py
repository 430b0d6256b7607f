"""The lines of a tape: a header, facts, and marks for the moments at which the job was queried."""

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
"""Most bytes of a line, written or read. The longest fact lists the libraries of a process: 60
bytes for each of some 1,000."""
TAPE = Codec(key=str, omit=Omit.DEFAULTS)
"""Encoding of a line: field names are kept, and fields with their default value are left out."""
NAMELESS = "job"
"""Name of the job on a tape without names."""


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a tape: what recorded it, and how."""

    schema: str
    version: str
    """Version of the program that recorded it."""
    machine: str
    """As `os.uname().machine` reports it; the numbers of system calls depend on it."""
    policy: Policy
    act: Act
    names: bool
    """True if names of programs, files and addresses were kept."""
    job: str = NAMELESS


@dataclass(frozen=True, slots=True)
class Start:
    """Watching of the job began (again, after a restart): earlier facts no longer count."""

    time: float
    """Unix seconds at the start."""
    unix_offset_s: float
    """Unix time minus boottime, in seconds."""
    restart: int = 0
    pid: int | None = None
    world_size: int | None = None
    unobserved: tuple[str, ...] = ()
    """What no probe on the host could observe."""


@dataclass(frozen=True, slots=True)
class Look:
    """Mark: the job was asked which threads should be read."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Mark: the job was asked whether its collective library should be queried."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Mark: the job was judged with all facts before this line."""

    unix_offset_s: float
    """Unix time minus boottime, in seconds, at the judgement."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The action of the previous judgement was postponed to the next one, because the ranks' stacks were being read."""


@dataclass(frozen=True, slots=True)
class End:
    """Last line of a complete tape: the run ended."""

    time: float
    """Unix seconds at the end."""
    reason: str
    exit_code: int
    job_code: int | None = None
    restart_count: int = 0
    duration_s: float = 0.0
    left_out_count: int = 0
    """Number of facts that were too long for a line."""


Mark = Start | Look | Ask | Judge | Hold | End
Entry = Fact | Mark


def kind_of(type_: type) -> str:
    """Name of a type on the tape: `ThreadSample` gives thread_sample."""
    if type_ is ThreadReading:
        return "inspection"  # name on the first recorded tapes
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type_.__name__).lower()


FACTS: Mapping[str, type] = {kind_of(arg): arg for arg in typing.get_args(Fact)}
MARKS: Mapping[str, type] = {kind_of(arg): arg for arg in typing.get_args(Mark)}
