"""Frozen dataclasses to and from JSON values, by their types alone. Pure.

A `Codec` is one form of JSON: how keys are written, what is left out, and metadata for dataclasses without JSON
metadata of their own. `encode` and `decode` use the form of our custom resources and of messages between our own
programs: `age_s` is written as `ageS`, `pod_uid` as `podUID`, and what is None, or False or empty by default, is
left out. In every form, a field with `wire(key, ...)` metadata has another name, is a time, or is not written. An
`Endpoint` is written as "ADDRESS:PORT", bytes in hexadecimal digits. A reader refuses a value of the wrong type or
an implausible size, and ignores unknown keys: a newer writer may add some. In an enum with a member UNKNOWN,
unknown words are read as that member.

Readers and writers are computed once for each dataclass: the controller of a large cluster reads some fifty reports
a second (docs/decisions/0017).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.json_values import (
    SCALARS,
    Read,
    UnknownWord,
    WrongValue,
    number,
    string,
    words,
    wrong,
)
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.ids import Endpoint

_T = TypeVar("_T")
Write = Callable[[Any], Any]
Declared = Mapping[type, Mapping[str, Mapping[str, Any]]]
"""Dataclass -> metadata by field name, for dataclasses without JSON metadata of their own."""
_NOTHING = object()
"""Sentinel that equals no value."""


class Omit(Enum):
    """What a form leaves out; a reader takes the default instead."""

    EMPTY = "empty"
    """None, and False or an empty tuple if that is the default. A None that is read counts as an absent key."""
    DEFAULTS = "defaults"
    """Every value that equals its default."""
    NOTHING = "nothing"


def wire(
    key: str | None, *, time: bool = False, lenient: bool = False, ago: bool = False
) -> dict[str, Any]:
    """Metadata of a field: its key in the object; None: not written.

    `time`: the seconds are written as a date. `lenient`: list entries with an unknown word are ignored. `ago`:
    seconds after some moment are written as seconds before it.
    """
    return {"key": key, "time": time, "lenient": lenient, "ago": ago}


def embedded() -> dict[str, Any]:
    """Metadata of a field with a dataclass, or None, whose fields are written as if they were those of the object.

    It is read as None if a field without a default is absent. No key may occur twice.
    """
    return {"key": None, "embedded": True}


def camel(name: str) -> str:
    """Key of a field: `pod_uid` as `podUID`, `age_s` as `ageS`."""
    first, *rest = name.split("_")
    return first + "".join("UID" if part == "uid" else part.capitalize() for part in rest)


@dataclass(frozen=True, slots=True)
class _Readers:
    """Compiled reader of a dataclass."""

    by_key: Mapping[str, tuple[str, Read]]
    """Key -> (field name, its reader)."""
    needed: tuple[tuple[str, str], ...]
    """(name, key) of each field without a default."""
    embedded: tuple[tuple[str, type], ...]
    """(name, type) of each field whose own fields are in the same object."""


@dataclass(frozen=True, slots=True)
class _Writers:
    """Compiled writer of a dataclass."""

    fields: tuple[tuple[str, str, Any, Write | None], ...]
    """(name, key, value that is left out, writer) of each field; writer None: written as it is."""
    embedded: tuple[str, ...]


class Codec:
    """One form of JSON; thread-safe."""

    def __init__(
        self,
        declared: Declared | None = None,
        *,
        key: Callable[[str], str] = camel,
        omit: Omit = Omit.EMPTY,
    ) -> None:
        """`key`: maps a field's name to its key, unless the field has `wire` metadata."""
        self._declared, self._key, self._omit = declared or {}, key, omit
        self._written: dict[type, _Writers] = {}
        self._read: dict[type, _Readers] = {}

    def encode(self, value: object) -> dict[str, Any]:
        """The JSON object of a dataclass."""
        kind = type(value)
        written = self._written.get(kind)
        if written is None:
            written = self._written[kind] = self._writers(kind)
        skips_none = self._omit is Omit.EMPTY
        found: dict[str, Any] = {}
        for name, key, omitted, write in written.fields:
            raw = getattr(value, name)
            if raw is None:
                if not skips_none and omitted is not None:
                    found[key] = None
            elif raw != omitted:
                found[key] = raw if write is None else write(raw)
        for name in written.embedded:
            if (inner := getattr(value, name)) is not None:
                found |= self.encode(inner)
        return found

    def decode(self, kind: type[_T], data: object, where: str = "") -> _T:
        """The dataclass of a JSON object; raises `ObjectError`, which names the position."""
        try:
            return self.read(kind, data)
        except WrongValue as error:
            error = error.inside(where) if where else error
            raise ObjectError(f"{error.place or 'the object'}: {error.text}") from None

    def read(self, kind: type[_T], data: object) -> _T:
        """As `decode`, but raises `WrongValue`; its subclass `UnknownWord` means an unknown word of an enum."""
        if type(data) is not dict and not isinstance(data, Mapping):  # the isinstance check is slow
            raise wrong("an object", data)
        readers = self._readers_of(kind)
        values: dict[str, Any] = {}
        skips_none = self._omit is Omit.EMPTY
        for key, raw in data.items():
            field = readers.by_key.get(key)
            if field is None or (raw is None and skips_none):
                continue
            try:
                values[field[0]] = field[1](raw)
            except WrongValue as error:
                raise error.inside(key) from None
        for name, key in readers.needed:
            if name not in values:
                raise WrongValue("missing").inside(key)
        for name, inner in readers.embedded:
            if all(data.get(key) is not None for _, key in self._readers_of(inner).needed):
                values[name] = self.read(inner, data)
        return kind(**values)

    def _readers_of(self, kind: type) -> _Readers:
        if kind not in self._read:
            self._read[kind] = self._readers(kind)
        return self._read[kind]

    def _fields(self, kind: type) -> Iterator[tuple[str, Field[Any], Mapping[str, Any], Any]]:
        """(key, field, metadata, type) of each field that is written."""
        declared, hints = self._declared.get(kind, {}), typing.get_type_hints(kind)
        for field in fields(kind):
            metadata = declared.get(field.name, field.metadata)
            key = metadata.get("key", self._key(field.name))
            if key is not None:
                yield key, field, metadata, hints[field.name]

    def _writers(self, kind: type) -> _Writers:
        return _Writers(
            tuple(
                (field.name, key, self._omitted(field), self._writer_of(metadata, hint))
                for key, field, metadata, hint in self._fields(kind)
            ),
            tuple(name for name, _ in _embedded(kind)),
        )

    def _omitted(self, field: Field[Any]) -> Any:
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        is_empty = default is False or default == ()
        if default is MISSING or self._omit is Omit.NOTHING:
            return _NOTHING
        return default if is_empty or self._omit is Omit.DEFAULTS else _NOTHING

    def _writer_of(self, metadata: Mapping[str, Any], hint: Any) -> Write | None:
        if metadata.get("time"):
            return rfc3339.to_text
        return _before if metadata.get("ago") else self._writer(hint)

    def _writer(self, hint: Any) -> Write | None:
        """Writer for values of this type; None: they are written as they are."""
        write = self._writer_of_type(*_parts(hint))
        if write is None or types.NoneType not in typing.get_args(hint):
            return write
        return partial(_optional, write)

    def _writer_of_type(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Write | None:
        if origin is tuple:
            return _list_writer(
                [self._writer(part) for part in (inner[:1] if inner[-1] is Ellipsis else inner)]
            )
        if origin is frozenset:
            return partial(_sorted, self._writer(inner[0]))
        if origin is Mapping or origin is dict or hint is Mapping:
            return dict
        if hint is Endpoint:
            return str
        if hint is bytes:
            return bytes.hex
        if is_dataclass(hint):
            return self.encode
        return _word_of if isinstance(hint, type) and issubclass(hint, Enum) else None

    def _readers(self, kind: type) -> _Readers:
        found = list(self._fields(kind))
        return _Readers(
            {
                key: (field.name, self._reader_of(metadata, hint))
                for key, field, metadata, hint in found
            },
            tuple(
                (field.name, key)
                for key, field, _, _ in found
                if field.default is MISSING and field.default_factory is MISSING
            ),
            _embedded(kind),
        )

    def _reader_of(self, metadata: Mapping[str, Any], hint: Any) -> Read:
        if metadata.get("time"):
            return _time
        if metadata.get("ago"):
            return _ago
        if metadata.get("lenient"):
            return partial(_sequence, tuple, self._reader(typing.get_args(hint)[0]), lenient=True)
        # if None means an absent key, no reader is needed for it
        return (
            self._reader_of_type(*_parts(hint)) if self._omit is Omit.EMPTY else self._reader(hint)
        )

    def _reader(self, hint: Any) -> Read:
        read = self._reader_of_type(*_parts(hint))
        return partial(_optional, read) if types.NoneType in typing.get_args(hint) else read

    def _reader_of_type(self, hint: Any, origin: Any, inner: tuple[Any, ...]) -> Read:
        if origin is tuple and inner[-1] is not Ellipsis:
            return partial(_fixed, tuple(self._reader(part) for part in inner))
        if origin is tuple or origin is frozenset:
            return partial(_sequence, origin, self._reader(inner[0]))
        if origin is Mapping or origin is dict or hint is Mapping:
            return (
                partial(_mapping, self._reader(inner[1]))
                if inner and inner[1] is not str
                else words
            )
        if hint is Endpoint:
            return _endpoint
        if hint is bytes:
            return _bytes
        if is_dataclass(hint):
            return partial(self.read, typing.cast("type[Any]", hint))
        if isinstance(hint, type) and issubclass(hint, Enum):
            known = {member.value: member for member in hint}
            unknown = hint.__members__.get("UNKNOWN")
            return partial(_enum, known, frozenset(map(type, known)), unknown)
        return SCALARS[hint]


def _embedded(kind: type) -> tuple[tuple[str, type], ...]:
    hints = typing.get_type_hints(kind)
    found = (field.name for field in fields(kind) if field.metadata.get("embedded"))
    return tuple((name, _parts(hints[name])[0]) for name in found)


def _parts(hint: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """A type without its NewType and without None: its origin and its arguments."""
    hint = getattr(hint, "__supertype__", hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return _parts(next(arg for arg in typing.get_args(hint) if arg is not types.NoneType))
    return hint, typing.get_origin(hint), typing.get_args(hint)


def _list_writer(writes: Sequence[Write | None]) -> Write:
    first = writes[0]
    if len(writes) > 1:
        return partial(_write_fixed, writes)
    return list if first is None else partial(_write_each, first)


def _write_each(write: Write, raw: Iterable[Any]) -> list[Any]:
    return [write(part) for part in raw]


def _write_fixed(writes: Sequence[Write | None], raw: Iterable[Any]) -> list[Any]:
    return [part if write is None else write(part) for write, part in zip(writes, raw, strict=True)]


def _sorted(write: Write | None, raw: Iterable[Any]) -> list[Any]:
    return sorted(raw if write is None else map(write, raw))


def _word_of(raw: Enum) -> Any:
    return raw.value


def _before(raw: float) -> float:
    return 0.0 - raw


def _optional(do: Read | Write, raw: object) -> object:
    return None if raw is None else do(raw)


def _time(raw: object) -> float:
    if not isinstance(raw, str):
        raise wrong("a time", raw)
    try:
        return rfc3339.from_text(raw)
    except ValueError as error:
        raise WrongValue(str(error)) from error


def _ago(raw: object) -> float:
    return 0.0 - number(raw)


def _list(raw: object) -> Sequence[Any]:
    if type(raw) is not list and (not isinstance(raw, Sequence) or isinstance(raw, str | bytes)):
        raise wrong("a list", raw)
    return raw


def _sequence(
    collection: Callable[[Any], Any], read: Read, raw: object, *, lenient: bool = False
) -> Any:
    found = []
    for index, part in enumerate(_list(raw)):
        try:
            found.append(read(part))
        except UnknownWord as error:
            if not lenient:
                raise error.inside(f"[{index}]") from None
        except WrongValue as error:
            raise error.inside(f"[{index}]") from None
    return collection(found)


def _fixed(reads: tuple[Read, ...], raw: object) -> tuple[Any, ...]:
    items = _list(raw)
    if len(items) != len(reads):
        raise WrongValue(f"expected {len(reads)} values, got {len(items)}")
    return tuple(read(part) for read, part in zip(reads, items, strict=True))


def _enum(
    known: Mapping[object, Enum], kinds: frozenset[type], unknown: Enum | None, raw: object
) -> Enum:
    if type(raw) not in kinds:
        raise wrong(f"one of {', '.join(map(str, known))}", raw)
    found = known.get(raw, unknown)
    if found is None:
        raise UnknownWord(wrong(f"one of {', '.join(map(str, known))}", raw).text)
    return found


def _endpoint(raw: object) -> Endpoint:
    return Endpoint.known(string(raw))


def _mapping(read: Read, raw: object) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise wrong("an object", raw)
    return {string(key): read(value) for key, value in raw.items()}


def _bytes(raw: object) -> bytes:
    try:
        return bytes.fromhex(string(raw))
    except ValueError:
        raise WrongValue("expected hexadecimal digits") from None


_OBJECTS = Codec()
encode, decode = _OBJECTS.encode, _OBJECTS.decode
