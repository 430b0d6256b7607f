"""Frozen dataclasses to and from plain JSON values, by their types alone. Pure.

Fields keep their names; those that have their default are left out. A reader passes over fields that it
does not know, and refuses what has the wrong type or is too large to be meant.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar

_T = TypeVar("_T")
_Read = Callable[[Any], Any]
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Counters, addresses and registers of the kernel have 64 bits, with or without a sign."""
_MOST_FLOAT = 1e11
"""Unix seconds of the year 5138: no time or length here is larger, and a calendar can still print it."""


class CodecError(ValueError):
    """The value is not what its type demands; the message begins with the field."""


class UnknownWord(CodecError):
    """An enum has no such word: a newer writer may."""


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
    return raw


def decode(kind: type[_T], data: object) -> _T:
    """The dataclass of a JSON object; raises `CodecError`."""
    if not isinstance(data, Mapping):
        raise _wrong("an object", data)
    values: dict[str, Any] = {}
    for name, is_needed, read in _readers(typing.cast("Hashable", kind)):
        if name not in data:
            if is_needed:
                raise CodecError(f"{name} is missing")
            continue
        try:
            values[name] = read(data[name])
        except CodecError as error:
            raise type(error)(f"{name}: {error}") from None
    return kind(**values)


@cache
def _readers(kind: Hashable) -> tuple[tuple[str, bool, _Read], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            each.name,
            each.default is MISSING and each.default_factory is MISSING,
            _reader(hints[each.name]),
        )
        for each in fields(typing.cast("type[Any]", kind))
    )


def _reader(hint: Any) -> _Read:
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
        return _words
    if is_dataclass(hint):
        return partial(decode, typing.cast("type[Any]", hint))
    if issubclass(hint, Enum):
        return partial(_word_of, {each.value: each for each in hint})
    return _SCALARS[hint]


def _optional(read: _Read, raw: object) -> object:
    return None if raw is None else read(raw)


def _list(raw: object) -> list[Any]:
    if not isinstance(raw, list):
        raise _wrong("a list", raw)
    return raw


def _fixed(reads: tuple[_Read, ...], raw: object) -> tuple[Any, ...]:
    items = _list(raw)
    if len(items) != len(reads):
        raise CodecError(f"{len(reads)} values are wanted, not {len(items)}")
    return tuple(read(each) for read, each in zip(reads, items, strict=True))


def _many(collection: Callable[[Any], Any], read: _Read, raw: object) -> Any:
    return collection(read(each) for each in _list(raw))


def _words(raw: object) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise _wrong("an object of strings", raw)
    return {_string(key): _string(value) for key, value in raw.items()}


def _word_of(known: Mapping[object, Enum], raw: object) -> Enum:
    if not isinstance(raw, str | int) or isinstance(raw, bool):
        raise _wrong("a word", raw)
    if raw not in known:
        raise UnknownWord(f"{str(raw)[:40]!r} is not known")
    return known[raw]


def _string(raw: object) -> str:
    if not isinstance(raw, str):
        raise _wrong("a string", raw)
    return raw


def _whole(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not _LEAST <= raw <= _MOST:
        raise _wrong("a whole number of 64 bits", raw)
    return raw


def _number(raw: object) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool):
        raise _wrong("a number", raw)
    # asked before it is made a float, which a whole number of a thousand digits cannot be
    if not -_MOST_FLOAT <= raw <= _MOST_FLOAT or math.isnan(raw):
        raise _wrong(f"a number up to {_MOST_FLOAT:.0e}", raw)
    return float(raw)


def _truth(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise _wrong("true or false", raw)
    return raw


_SCALARS: Mapping[object, _Read] = {str: _string, int: _whole, float: _number, bool: _truth}


def _wrong(wanted: str, raw: object) -> CodecError:
    return CodecError(f"{wanted} is wanted, not {_shown(raw)}")


def _shown(raw: object) -> str:
    if isinstance(raw, int) and not isinstance(raw, bool) and not _LEAST <= raw <= _MOST:
        return "a larger one"  # the digits of a huge number cannot always be printed
    return ascii(raw)[:40] if isinstance(raw, str | int | float) else type(raw).__name__
