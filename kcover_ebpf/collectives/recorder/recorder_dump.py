"""Converts a dump of PyTorch's flight recorder to a `RankRecord`.

Pure. There are two forms: a pickle, which a rank writes when asked through its pipe, and JSON, which the HTTP
server of newer versions and related programs write. Neither is trusted: a value of the wrong type or size counts as
absent. Source of the keys: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.collectives.recorder import pickle_machine
from kcover_ebpf.collectives.recorder.pickle_machine import PickleError
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.recorders import RankRecord, RecordedCall, RecordedGroup
from kcover_ebpf.ids import Pid

_MOST_CALLS = 2_100
"""Most calls kept, newest first, because a stall is about the newest. PyTorch's own ring has 2,000
by default."""
_MOST_GROUPS = 512
_MOST_JSON_BYTES = 2 << 20
_MOST_JSON_CONTAINERS = 60_000
_MOST_JSON_COMMAS = 300_000
"""Counted before anything is built: a byte of JSON can become thirty in memory. 2,000 calls have
20,000 to 60,000."""
_MOST_RANKS_TEXT = 12 * 1024
"""Most characters of a member list of `_MOST_MEMBERS` ranks; the members of larger groups are not kept."""
_MOST_MEMBERS = 1024
"""Most members of a group that are listed; a report carries the list once for each rank."""
_MOST_TENSORS = 256
_MOST_DIMENSIONS = 16
_MOST_FRAMES = 128
_SHOWN_TENSORS = 2
_KEPT_GROUPS = 16
"""Most groups of one rank: those with incomplete calls first, then the most recently used."""
_KEPT_CALLS = 4
_NAME, _PLACE = 100, 256
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
"""Range of PyTorch's numbers, and of the schema that a report must follow."""
_COMPLETED = "completed"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "<")

_ENDS = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")


class DumpError(ValueError):
    """The bytes are not a dump that can be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class DumpedCall:
    """One entry of the ring: one collective or message that the rank enqueued."""

    record: int
    """Sequence number of the rank's calls over all groups, from 0."""
    group_id: int
    purpose: str
    """Description of its group, such as "default_pg"."""
    call: RecordedCall
    message: bool
    """True for a send or receive."""


@dataclass(frozen=True, slots=True)
class DumpedStatus:
    """Sequence numbers of a group's collectives; -1: none yet; None: not recorded."""

    enqueued: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Dump:
    """The contents of one recorder."""

    version: str
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    """Group name -> its description and the global ranks of its members."""
    status: Mapping[int, DumpedStatus]
    """Group number on this rank -> its status."""
    calls: tuple[DumpedCall, ...]
    """Calls in the order in which they were enqueued."""


def read(data: bytes) -> Dump:
    """Parse a dump in either form; raises `DumpError`."""
    if not data:
        raise DumpError("the dump is empty")
    try:
        raw = _json(data) if data[:1] == b"{" else pickle_machine.load(data)
    except PickleError as error:
        raise DumpError(f"the dump is not plain data: {error}") from None
    except (ValueError, RecursionError):
        raise DumpError("the dump is neither a pickle nor JSON") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("version"), str):
        raise DumpError("the dump has no version: it is not from a flight recorder")
    shared = _Shared()
    return Dump(
        _text(raw["version"], _NAME),
        _groups(raw.get("pg_config")),
        _status(raw.get("pg_status")),
        tuple(
            call
            for entry in _list(raw.get("entries"))[-_MOST_CALLS:]
            if (call := shared.call(entry)) is not None
        ),
    )


def _json(data: bytes) -> object:
    containers = data.count(b"[") + data.count(b"{")
    if (
        len(data) > _MOST_JSON_BYTES
        or containers > _MOST_JSON_CONTAINERS
        or data.count(b",") > _MOST_JSON_COMMAS
    ):
        raise ValueError("more parts than a recorder has")
    return json.loads(data)


def _groups(raw: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}
    for name, item in list(_dict(raw).items())[:_MOST_GROUPS]:
        ranks = _dict(item).get("ranks")
        text = ranks if isinstance(ranks, str) and len(ranks) <= _MOST_RANKS_TEXT else ""
        members = re.findall(r"\d{1,9}", text)
        # a truncated list would make non-members of members
        kept = tuple(map(int, members)) if len(members) <= _MOST_MEMBERS else ()
        found[_text(name, _NAME)] = _purpose(_dict(item).get("desc")), kept
    return found


def _status(raw: object) -> dict[int, DumpedStatus]:
    found = {}
    for name, item in list(_dict(raw).items())[:_MOST_GROUPS]:
        number = _whole(name)
        if number is not None:
            found[number] = DumpedStatus(
                *(
                    _whole(_dict(item).get(f"last_{what}_collective"))
                    for what in ("enqueued", "completed")
                )
            )
    return found


class _Shared:
    """Values shared by the calls of one dump, parsed once.

    A pickle may refer to one object from many places: 44 KiB can hold 2,000 calls of 256 tensors each. Parsed
    values are found by the identity of the object, which lives as long as the dump.
    """

    def __init__(self) -> None:
        self._calls: dict[int, DumpedCall | None] = {}
        self._shapes: dict[int, tuple[int, str]] = {}
        self._places: dict[int, str] = {}
        self._frames: dict[int, str] = {}

    def call(self, raw: object) -> DumpedCall | None:
        """One call; None for an entry without the required fields."""
        if id(raw) not in self._calls:
            self._calls[id(raw)] = self._read(raw) if isinstance(raw, dict) else None
        return self._calls[id(raw)]

    def _read(self, raw: Mapping[Any, Any]) -> DumpedCall | None:
        sequence, title = _whole(raw.get("collective_seq_id")), raw.get("profiling_name")
        group = _list(raw.get("process_group"))
        if sequence is None or not isinstance(title, str) or not group:
            return None
        message = raw.get("is_p2p") is True
        if message:
            sequence = _whole(raw.get("p2p_seq_id")) or 0
        elements, sizes = self._sizes(raw.get("input_sizes"))
        backend, _, operation = title.rpartition(":")
        # only NCCL records which calls are complete; other backends remove them from the list of
        # work
        ended = raw.get("retired") is True and backend != "nccl"
        call = RecordedCall(
            sequence,
            _text(operation, _NAME),
            _text(group[0], _NAME),
            _COMPLETED if ended else _text(raw.get("state"), _NAME),
            elements,
            _text(" ".join([sizes, *_first_type(raw.get("input_dtypes"))]).strip(), _NAME),
            self._place(raw.get("frames")),
        )
        return DumpedCall(
            _whole(raw.get("record_id")) or 0,
            _whole(raw.get("pg_id")) or 0,
            _purpose(group[1]) if len(group) > 1 else "",
            call,
            message,
        )

    def _sizes(self, raw: object) -> tuple[int, str]:
        """Number of elements of the tensors, and their sizes as text."""
        if id(raw) not in self._shapes:
            shapes = _shapes(raw)
            count = sum(math.prod(shape) for shape in shapes) & _MOST
            self._shapes[id(raw)] = count, _shape_text(shapes)
        return self._shapes[id(raw)]

    def _place(self, raw: object) -> str:
        if id(raw) not in self._places:
            texts = (self._frame(item) for item in _list(raw)[:_MOST_FRAMES])
            self._places[id(raw)] = _place([text for text in texts if text])
        return self._places[id(raw)]

    def _frame(self, raw: object) -> str:
        if id(raw) not in self._frames:
            self._frames[id(raw)] = _frame(_dict(raw))
        return self._frames[id(raw)]


def _shapes(raw: object) -> list[list[int]]:
    return [
        [
            number
            for item in _list(tensor)[:_MOST_DIMENSIONS]
            if (number := _whole(item)) is not None
        ]
        for tensor in _list(raw)[:_MOST_TENSORS]
    ]


def _shape_text(shapes: Sequence[Sequence[int]]) -> str:
    shown = ["x".join(map(str, shape)) or "scalar" for shape in shapes[:_SHOWN_TENSORS]]
    if len(shapes) > _SHOWN_TENSORS:
        shown.append(f"and {len(shapes) - _SHOWN_TENSORS} more")
    return ", ".join(shown)


def _first_type(raw: object) -> list[str]:
    return [_text(item, _NAME) for item in _list(raw)[:1]]


def _frame(frame: Mapping[Any, Any]) -> str:
    file, line = frame.get("filename"), _whole(frame.get("line"))
    if not isinstance(file, str) or not file or not line:
        return ""
    return f"{_text(file, _PLACE // 2)}:{line} ({_text(frame.get('name'), _PLACE // 4)})"


def _place(frames: Sequence[str]) -> str:
    """The source line in the program that made the call; the innermost frame if all belong to libraries."""
    own = (frame for frame in frames if not any(part in frame for part in _LIBRARIES))
    return next(own, frames[0] if frames else "")


# --- values that may be anything


def _dict(raw: object) -> Mapping[Any, Any]:
    return raw if isinstance(raw, dict) else {}


def _list(raw: object) -> Sequence[Any]:
    return raw if isinstance(raw, list | tuple) else ()


def _text(raw: object, limit: int) -> str:
    """Printable text on one line; empty if the value is not a text."""
    if not isinstance(raw, str):
        return ""
    return "".join(text if text.isprintable() else "?" for text in raw[:limit])


def _purpose(raw: object) -> str:
    text = _text(raw, _NAME)
    return "" if text == "undefined" else text


def _whole(raw: object) -> int | None:
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,18}", raw):
        return int(raw)
    if not isinstance(raw, int) or isinstance(raw, bool) or not _LEAST <= raw <= _MOST:
        return None
    return raw


# --- what of it is kept


def record_of(dump: Dump, pid: Pid, rank: int) -> RankRecord:
    """The part of a dump that is compared with other ranks' recordings."""
    calls: dict[str, list[DumpedCall]] = {name: [] for name in dump.groups}
    for call in dump.calls:
        calls.setdefault(call.call.group, []).append(call)
    whole = not dump.calls or dump.calls[0].record == 0
    used = {dumped_call.call.group: dumped_call.record for dumped_call in dump.calls}
    groups = [_group(dump, name, made, whole) for name, made in calls.items()]
    groups.sort(
        key=lambda group: (not (group.pending or group.messages), -used.get(group.name, -1))
    )
    last = dump.calls[-1] if dump.calls else None
    return RankRecord(
        pid,
        rank,
        tuple(groups[:_KEPT_GROUPS]),
        None if last is None else last.call,
    )


def _group(dump: Dump, name: str, calls: Sequence[DumpedCall], whole: bool) -> RecordedGroup:
    """`whole`: the ring holds every call that the rank ever made."""
    # other backends than NCCL list members under another name
    purpose, ranks = dump.groups.get(name, (calls[-1].purpose if calls else "", ()))
    collectives = [call for call in calls if not call.message]
    known = [dump.status[call.group_id] for call in calls[-1:] if call.group_id in dump.status]
    enqueued = [collective.call.sequence for collective in collectives]
    enqueued += [status.enqueued for status in known if status.enqueued is not None]
    return RecordedGroup(
        name,
        purpose,
        ranks,
        max([0, *enqueued]) if enqueued or whole else None,
        _pending(collectives, known),
        _messages([call for call in calls if call.message], ranks),
        collectives[-1].call if collectives else None,
    )


def _pending(
    collectives: Sequence[DumpedCall], known: Sequence[DumpedStatus]
) -> tuple[RecordedCall, ...]:
    # operations of a group complete in order, so everything before a completed one has completed
    # too: parts of a coalesced call are never marked
    done = [call.call.sequence for call in collectives if call.call.state == _COMPLETED]
    done += [status.completed for status in known if status.completed is not None]
    behind = max(done, default=-1)
    found: dict[int, RecordedCall] = {}
    for collective in collectives:
        if collective.call.sequence > behind:
            found.setdefault(collective.call.sequence, collective.call)
    return tuple(found[number] for number in sorted(found)[:_KEPT_CALLS])


def _messages(calls: Sequence[DumpedCall], ranks: Sequence[int]) -> tuple[RecordedCall, ...]:
    done: dict[str, int] = {}
    for call in calls:
        if call.call.state == _COMPLETED:
            done[call.call.operation] = call.record
    found = [
        dumped_call.call
        for dumped_call in calls
        if dumped_call.record > done.get(dumped_call.call.operation, -1)
    ]
    return tuple(
        replace(recorded_call, peer=_peer(recorded_call.operation, ranks))
        for recorded_call in found[:_KEPT_CALLS]
    )


def _peer(operation: str, ranks: Sequence[int]) -> int | None:
    ends = _ENDS.fullmatch(operation)
    index = int(ends[3]) if ends else len(ranks)
    return ranks[index] if index < len(ranks) else None
