"""Messages between joined runs, and their JSON form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcover_ebpf.api.codec import Codec, wire
from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.settings import Act

VERSION = 3


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a run to the coordinator."""

    host: str
    job: str
    hosts: int
    act: Act
    version: int = VERSION
    run: str = ""
    """Random word that identifies the run when it reconnects."""
    start: int = 0
    """Number of orders that the run has taken to restart the job."""


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The job of one host has ended by itself."""

    code: int
    """Exit code, or minus the signal number."""
    start: int = 0
    """The start of the job that has ended, as in `Hello`."""


@dataclass(frozen=True, slots=True)
class MemberMessage:
    """A message of a run to the coordinator; exactly one field is set."""

    hello: Hello | None = None
    report: FaultReport | None = None
    """Report of the host. Its `pods` are replaced: the coordinator knows the sender."""
    part_end: PartEnd | None = None
    done: str | None = None
    """Id of an order that was carried out."""


@dataclass(frozen=True, slots=True)
class EndOrder:
    """Order to save evidence of the job or to end it, on every host."""

    id: str
    act: Act
    reason: str
    verdict: Verdict
    refusal: str = ""
    """Why the job is not restarted, if the policy asked for a restart."""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Order to restart the job on every host: it has ended on all of them."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class CoordinatorMessage:
    """A message of the coordinator; at most one field is set, none in a heartbeat."""

    refused: str | None = None
    verdict: Verdict | None = None
    end: EndOrder | None = None
    start: StartOrder | None = None
    over: bool = False
    """The job has ended on all hosts."""


_WHOLE = Codec({Verdict: {"waits": wire(None)}})
"""JSON form of a verdict with its times, which reports leave out."""


def packed(message: MemberMessage | CoordinatorMessage) -> dict[str, Any]:
    """The JSON object of a message."""
    return REPORT.encode(message) if isinstance(message, MemberMessage) else _WHOLE.encode(message)


def from_member(value: Mapping[str, Any]) -> MemberMessage:
    """A run's message; raises `ObjectError` for an invalid object."""
    return REPORT.decode(MemberMessage, value, "message")


def to_member(value: Mapping[str, Any]) -> CoordinatorMessage:
    """The coordinator's message; raises `ObjectError` for an invalid object."""
    return _WHOLE.decode(CoordinatorMessage, value, "message")


def hello_of(value: Mapping[str, Any]) -> Hello:
    """The first message of a connection; raises `ObjectError`."""
    hello = from_member(value).hello
    if hello is None:
        raise ObjectError("the first message is not a hello")
    if not hello.host or len(hello.host) > 253:
        raise ObjectError("hello: the host name is missing")
    if len(hello.run) > 64:
        raise ObjectError("hello: the name of the run is missing")
    return hello
