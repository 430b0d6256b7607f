"""Frozen dataclasses to and from the JSON objects of our custom resources.

`age_s` is written as `ageS`, `pod_uid` as `podUID`. A field whose metadata say `wire(key, ...)` has
another name, is a time, or is not written. An `Endpoint` is written as "ADDRESS:PORT". What is None, or False or empty
by default, is left out. A reader refuses what has the wrong type, and passes over keys that it does not know: a newer
writer may say more. Of an enum that has a word UNKNOWN, a word that a newer writer added is read as that.

What is to be done with each field is worked out once for each dataclass: a controller of a large
cluster reads some fifty reports a second.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
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
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.ids import Endpoint

_T = TypeVar("_T")


def wire(
    key: str | None, *, time: bool = False, lenient: bool = False, ago: bool = False
) -> dict[str, Any]:
    """Metadata of a field: its name in the object; None where it is not written.

    `time`: its seconds are written as a date. `lenient`: entries of a list with a word that we do not know are passed
    over. `ago`: seconds after some moment are written as seconds before it.
    """
    return {"key": key, "time": time, "lenient": lenient, "ago": ago}


_DECLARED: dict[type, Mapping[str, Mapping[str, Any]]] = {}


def declare(kind: type, metadata: Mapping[str, Mapping[str, Any]]) -> None:
    """Metadata of fields, by name, for a dataclass that knows nothing of objects."""
    _DECLARED[kind] = metadata


def camel(name: str) -> str:
    """`pod_uid` as `podUID`, `age_s` as `ageS`."""
    first, *rest = name.split("_")
    return first + "".join("UID" if part == "uid" else part.capitalize() for part in rest)


def encode(value: object) -> dict[str, Any]:
    """The JSON object of a dataclass."""
    found = {}
    for name, key, default, write in _written(typing.cast("Hashable", type(value))):
        raw = getattr(value, name)
        if raw is None or (raw in ((), False) and raw == default):
            continue
        found[key] = write(raw)
    return found


def _plain(raw: Any) -> Any:
    if isinstance(raw, str | int | float):
        return raw
    if is_dataclass(raw):
        return encode(raw)
    if isinstance(raw, Enum):
        return raw.value
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, Endpoint):
        return str(raw)
    if isinstance(raw, tuple):
        return [_plain(each) for each in raw]
    return raw


def _before(raw: float) -> float:
    return 0.0 - raw


@cache
def _written(kind: Hashable) -> tuple[tuple[str, str, Any, Callable[[Any], Any]], ...]:
    """Of each field that is written: its name, its key, its default, and what writes it."""
    return tuple(
        (name, key, each.default, _write_of(metadata))
        for name, key, each, metadata in _fields(kind)
    )


def _write_of(metadata: Mapping[str, Any]) -> Callable[[Any], Any]:
    if metadata.get("time"):
        return rfc3339.to_text
    return _before if metadata.get("ago") else _plain


def decode(kind: type[_T], data: object, where: str = "") -> _T:
    """The dataclass of a JSON object; raises `ObjectError`, which names the place."""
    try:
        return typing.cast("_T", _object(kind, data))
    except WrongValue as error:
        error = error.inside(where) if where else error
        raise ObjectError(f"{error.place or 'the object'}: {error.text}") from None


def _object(kind: type, data: object) -> object:
    if not isinstance(data, Mapping):
        raise wrong("an object", data)
    values: dict[str, Any] = {}
    for name, key, is_needed, read in _readers(kind):
        raw = data.get(key)
        if raw is None:
            if is_needed:
                raise WrongValue("missing").inside(key)
            continue
        try:
            values[name] = read(raw)
        except WrongValue as error:
            raise error.inside(key) from None
    return kind(**values)


@cache
def _readers(kind: Hashable) -> tuple[tuple[str, str, bool, Read], ...]:
    """Of each field: its name, its key, whether it must be there, and what reads it."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            name,
            key,
            each.default is MISSING and each.default_factory is MISSING,
            _read_of(metadata, hints[name]),
        )
        for name, key, each, metadata in _fields(kind)
    )


def _fields(kind: Hashable) -> Iterator[tuple[str, str, Field[Any], Mapping[str, Any]]]:
    """Of each field that is written: its name, its key, itself and its metadata."""
    declared = _DECLARED.get(typing.cast("type[Any]", kind), {})
    for each in fields(typing.cast("type[Any]", kind)):
        metadata = declared.get(each.name, each.metadata)
        key = metadata.get("key", camel(each.name))
        if key is not None:
            yield each.name, key, each, metadata


def _read_of(metadata: Mapping[str, Any], hint: Any) -> Read:
    if metadata.get("time"):
        return _time
    if metadata.get("ago"):
        return _ago
    if metadata.get("lenient"):
        return partial(_sequence, _reader(typing.get_args(hint)[0]), lenient=True)
    return _reader(hint)


def _reader(hint: Any) -> Read:
    hint = getattr(hint, "__supertype__", hint)
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _reader(next(each for each in typing.get_args(hint) if each is not types.NoneType))
    if origin is tuple:
        return partial(_sequence, _reader(typing.get_args(hint)[0]))
    if origin is Mapping or hint is Mapping:
        return words
    if hint is Endpoint:
        return _endpoint
    if is_dataclass(hint):
        return partial(_object, typing.cast("type[Any]", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        unknown = hint.__members__.get("UNKNOWN")
        return partial(_enum, {each.value: each for each in hint}, unknown)
    return SCALARS[hint]


def _time(raw: object) -> float:
    if not isinstance(raw, str):
        raise wrong("a time", raw)
    try:
        return rfc3339.from_text(raw)
    except ValueError as error:
        raise WrongValue(str(error)) from error


def _ago(raw: object) -> float:
    return 0.0 - number(raw)


def _sequence(read: Read, raw: object, *, lenient: bool = False) -> tuple[Any, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise wrong("a list", raw)
    found = []
    for index, each in enumerate(raw):
        try:
            found.append(read(each))
        except UnknownWord as error:
            if not lenient:
                raise error.inside(f"[{index}]") from None
        except WrongValue as error:
            raise error.inside(f"[{index}]") from None
    return tuple(found)


def _enum(known: Mapping[object, Enum], unknown: Enum | None, raw: object) -> Enum:
    found = known.get(raw, unknown) if isinstance(raw, str) else None
    if found is None:
        error = wrong(f"one of {', '.join(str(each) for each in known)}", raw)
        raise UnknownWord(error.text) if isinstance(raw, str) else error
    return found


def _endpoint(raw: object) -> Endpoint:
    return Endpoint.parse(string(raw))
