"""Frozen dataclasses to and from plain JSON values, by their types alone. Pure.

Fields keep their names; those that have their default are left out. A reader passes over fields that it
does not know, and refuses what has the wrong type or is too large to be meant.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar

from kcover_ebpf.api.json_values import (
    SCALARS,
    Read,
    UnknownWord,
    WrongValue,
    string,
    words,
    wrong,
)

_T = TypeVar("_T")


def encode(value: object) -> dict[str, Any]:
    """The JSON object of a dataclass."""
    found = {}
    for name, default in _written(typing.cast("Hashable", type(value))):
        raw = getattr(value, name)
        if default is MISSING or raw != default:
            found[name] = _plain(raw)
    return found


@cache
def _written(kind: Hashable) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (
            each.name,
            each.default if each.default_factory is MISSING else each.default_factory(),
        )
        for each in fields(typing.cast("type[Any]", kind))
    )


def _plain(raw: Any) -> Any:
    if isinstance(raw, Enum):
        return raw.value
    if is_dataclass(raw):
        return encode(raw)
    if isinstance(raw, frozenset):
        return sorted(_plain(each) for each in raw)
    if isinstance(raw, tuple):
        return [_plain(each) for each in raw]
    if isinstance(raw, bytes):
        return raw.hex()
    if isinstance(raw, Mapping):
        return dict(raw)
    return raw


def decode(kind: type[_T], data: object) -> _T:
    """The dataclass of a JSON object; raises `WrongValue`."""
    if not isinstance(data, Mapping):
        raise wrong("an object", data)
    values: dict[str, Any] = {}
    for name, is_needed, read in _readers(typing.cast("Hashable", kind)):
        if name not in data:
            if is_needed:
                raise WrongValue("missing").inside(name)
            continue
        try:
            values[name] = read(data[name])
        except WrongValue as error:
            raise error.inside(name) from None
    return kind(**values)


@cache
def _readers(kind: Hashable) -> tuple[tuple[str, bool, Read], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            each.name,
            each.default is MISSING and each.default_factory is MISSING,
            _reader(hints[each.name]),
        )
        for each in fields(typing.cast("type[Any]", kind))
    )


def _reader(hint: Any) -> Read:
    hint = getattr(hint, "__supertype__", hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (other,) = (each for each in inner if each is not types.NoneType)
        return partial(_optional, _reader(other))
    if origin is tuple and inner[-1] is not Ellipsis:
        return partial(_fixed, tuple(_reader(each) for each in inner))
    if origin is tuple:
        return partial(_many, tuple, _reader(inner[0]))
    if origin is frozenset:
        return partial(_many, frozenset, _reader(inner[0]))
    if origin is dict:
        return words
    if origin is Mapping:
        return partial(_numbers, _reader(inner[1]))
    if is_dataclass(hint):
        return partial(decode, typing.cast("type[Any]", hint))
    if hint is bytes:
        return _bytes
    if issubclass(hint, Enum):
        return partial(_word_of, {each.value: each for each in hint})
    return SCALARS[hint]


def _optional(read: Read, raw: object) -> object:
    return None if raw is None else read(raw)


def _list(raw: object) -> list[Any]:
    if not isinstance(raw, list):
        raise wrong("a list", raw)
    return raw


def _fixed(reads: tuple[Read, ...], raw: object) -> tuple[Any, ...]:
    items = _list(raw)
    if len(items) != len(reads):
        raise WrongValue(f"expected {len(reads)} values, got {len(items)}")
    return tuple(read(each) for read, each in zip(reads, items, strict=True))


def _many(collection: Callable[[Any], Any], read: Read, raw: object) -> Any:
    return collection(read(each) for each in _list(raw))


def _numbers(read: Read, raw: object) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise wrong("an object", raw)
    return {string(key): read(each) for key, each in raw.items()}


def _bytes(raw: object) -> bytes:
    try:
        return bytes.fromhex(string(raw))
    except ValueError:
        raise WrongValue("expected hexadecimal digits") from None


def _word_of(known: Mapping[object, Enum], raw: object) -> Enum:
    if not isinstance(raw, str | int) or isinstance(raw, bool):
        raise wrong("a word", raw)
    if raw not in known:
        raise UnknownWord(f"{str(raw)[:40]!r} is not known")
    return known[raw]
