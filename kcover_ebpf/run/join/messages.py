"""What joined runs say to each other, and its form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcover_ebpf.api.codec import Codec, wire
from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.settings import Act

VERSION = 2


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a run."""

    host: str
    job: str
    hosts: int
    act: Act
    version: int = VERSION
    run: str = ""
    """Which run on that host: a random word, by which one is known that connects again."""


@dataclass(frozen=True, slots=True)
class MemberMessage:
    """What a run says to the coordinator; one of these."""

    hello: Hello | None = None
    report: FaultReport | None = None
    """Its `pods` are not believed: the coordinator knows who sent it."""
    ended: int | None = None
    """The job of this host has ended by itself, with this exit code (minus the number of a signal)."""
    done: str | None = None
    """Id of the order that was carried out."""


@dataclass(frozen=True, slots=True)
class EndOrder:
    """Keep evidence of the job or end it, on every host."""

    id: str
    act: Act
    reason: str
    verdict: Verdict
    refusal: str = ""
    """Why it is not started again, where it was to be."""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Start the job again, on every host: it has ended on all of them."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class CoordinatorMessage:
    """What the coordinator says; at most one of these, none of them to show that it is there."""

    refused: str | None = None
    verdict: Verdict | None = None
    end: EndOrder | None = None
    start: StartOrder | None = None
    over: bool = False
    """The job has ended on all hosts."""


_WHOLE = Codec({Verdict: {"waits": wire(None)}})
"""A verdict with its times, unlike the one in a report."""


def packed(message: MemberMessage | CoordinatorMessage) -> dict[str, Any]:
    """The JSON object of a message."""
    return REPORT.encode(message) if isinstance(message, MemberMessage) else _WHOLE.encode(message)


def from_member(value: Mapping[str, Any]) -> MemberMessage:
    """Raises `ObjectError`."""
    return REPORT.decode(MemberMessage, value, "message")


def to_member(value: Mapping[str, Any]) -> CoordinatorMessage:
    """Raises `ObjectError`."""
    return _WHOLE.decode(CoordinatorMessage, value, "message")


def hello_of(value: Mapping[str, Any]) -> Hello:
    """The first message; raises `ObjectError`."""
    hello = from_member(value).hello
    if hello is None:
        raise ObjectError("the first message is no hello")
    if not hello.host or len(hello.host) > 253:
        raise ObjectError("hello: no host name")
    if len(hello.run) > 64:
        raise ObjectError("hello: no name of a run")
    return hello
