"""Frozen dataclasses to and from the JSON objects of our custom resources.

`age_s` is written as `ageS`, `pod_uid` as `podUID`. A field whose metadata say `wire(key, ...)` has
another name, or is a time. What is None, or False or empty by default, is left out. A reader refuses
what has the wrong type, and passes over keys that it does not know: a newer writer may say more.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

from kcover_ebpf.cluster import times
from kcover_ebpf.errors import ObjectError

_T = TypeVar("_T")


def wire(key: str, *, time: bool = False) -> dict[str, Any]:
    """Metadata of a field: its name in the object, and whether its seconds are written as a date."""
    return {"key": key, "time": time}


def camel(name: str) -> str:
    """`pod_uid` as `podUID`, `age_s` as `ageS`."""
    first, *rest = name.split("_")
    return first + "".join("UID" if part == "uid" else part.capitalize() for part in rest)


def encode(value: object) -> dict[str, Any]:
    """The JSON object of a dataclass."""
    found = {}
    for each in _fields(cast("Hashable", type(value))):
        raw = getattr(value, each.name)
        if raw is None or (raw in ((), False) and raw == each.default):
            continue
        found[_key(each)] = times.to_text(raw) if each.metadata.get("time") else _plain(raw)
    return found


def _plain(raw: Any) -> Any:
    if is_dataclass(raw):
        return encode(raw)
    if isinstance(raw, Enum):
        return raw.value
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, tuple):
        return [_plain(each) for each in raw]
    return raw


def decode(kind: type[_T], data: object, where: str = "") -> _T:
    """The dataclass of a JSON object; raises `ObjectError`, which names the place."""
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object", data)
    hints = _hints(cast("Hashable", kind))
    values: dict[str, Any] = {}
    for each in _fields(cast("Hashable", kind)):
        key = _key(each)
        inside = f"{where}.{key}" if where else key
        raw = data.get(key)
        if raw is None:
            if each.default is MISSING and each.default_factory is MISSING:
                raise ObjectError(f"{inside}: missing")
            continue
        if each.metadata.get("time"):
            values[each.name] = _time(raw, inside)
        else:
            values[each.name] = _value(hints[each.name], raw, inside)
    return kind(**values)


def _time(raw: object, where: str) -> float:
    if not isinstance(raw, str):
        raise _wrong(where, "a time", raw)
    try:
        return times.from_text(raw)
    except ValueError as error:
        raise ObjectError(f"{where}: {error}") from error


def _value(hint: Any, raw: object, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
        origin = typing.get_origin(hint)
    if origin is tuple:
        return _sequence(typing.get_args(hint)[0], raw, where)
    if origin is Mapping or hint is Mapping:
        return _labels(raw, where)
    if is_dataclass(hint):
        return decode(cast("type[Any]", hint), raw, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint, raw, where)
    return _scalar(hint, raw, where)


def _sequence(hint: Any, raw: object, where: str) -> tuple[Any, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise _wrong(where, "a list", raw)
    return tuple(_value(hint, each, f"{where}[{index}]") for index, each in enumerate(raw))


def _labels(raw: object, where: str) -> dict[str, str]:
    if not isinstance(raw, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in raw.items()
    ):
        raise _wrong(where, "an object of strings", raw)
    return dict(raw)


def _enum(hint: type[Enum], raw: object, where: str) -> Enum:
    try:
        return hint(raw)
    except ValueError as error:
        raise _wrong(where, f"one of {', '.join(str(each.value) for each in hint)}", raw) from error


_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _scalar(hint: type, raw: object, where: str) -> Any:
    if hint is bool or isinstance(raw, bool):
        if hint is bool and isinstance(raw, bool):
            return raw
    elif hint is float and isinstance(raw, int | float) and raw == raw:  # noqa: PLR0124 - not nan
        return float(raw)
    elif hint in (int, str) and isinstance(raw, hint):
        return raw
    raise _wrong(where, _NAMES[hint], raw)


def _wrong(where: str, wanted: str, raw: object) -> ObjectError:
    return ObjectError(f"{where or 'the object'}: {wanted} is wanted, not {str(raw)[:40]!r}")


@cache
def _fields(kind: Hashable) -> tuple[Field[Any], ...]:
    return fields(cast("type[Any]", kind))


def _key(each: Field[Any]) -> str:
    return each.metadata.get("key") or camel(each.name)


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind)
