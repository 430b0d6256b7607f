"""Reads single JSON values from outside: each must have its type and a plausible size.

`map_of`, `list_of` and `text_of` are for objects of other programs, in which a value of another type counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Read = Callable[[Any], Any]
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Range of whole numbers: 64 bits, signed or unsigned (int64 of OpenAPI; counters and addresses of the kernel)."""
_MOST_NUMBER = 1e11
"""Unix seconds of the year 5138: no age, length or time is larger, and arithmetic with it stays exact to 0.1 ms."""


class WrongValue(Exception):
    """A wrong value and its position, which is composed while the exception propagates."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text, self.place = text, ""

    def __str__(self) -> str:
        """The position, if known, and what is wrong there."""
        return f"{self.place}: {self.text}" if self.place else self.text

    def inside(self, part: str) -> WrongValue:
        """The same error, inside a field or a list entry (`[3]`)."""
        dot = "." if self.place and not self.place.startswith("[") else ""
        self.place = f"{part}{dot}{self.place}"
        return self


class UnknownWord(WrongValue):
    """A word that an enum does not have: from a newer writer, or invalid."""


def wrong(wanted: str, raw: object) -> WrongValue:
    """The error for a value of another type or size."""
    # the digits of a huge number cannot always be printed
    is_huge = isinstance(raw, int) and not _LEAST <= raw <= _MOST
    return WrongValue(
        f"expected {wanted}, got {'a larger one' if is_huge else repr(str(raw)[:40])}"
    )


def string(raw: object) -> str:
    """A text; raises `WrongValue` otherwise."""
    if not isinstance(raw, str):
        raise wrong("a string", raw)
    return raw


def whole(raw: object) -> int:
    """A whole number of 64 bits."""
    if not isinstance(raw, int) or isinstance(raw, bool) or not _LEAST <= raw <= _MOST:
        raise wrong("a whole number of 64 bits", raw)
    return raw


def number(raw: object) -> float:
    """A finite number of plausible size."""
    if not isinstance(raw, int | float) or isinstance(raw, bool):
        raise wrong("a number", raw)
    # also false for NaN; checked before a whole number of a thousand digits is converted
    if not -_MOST_NUMBER <= raw <= _MOST_NUMBER:
        raise wrong(f"a number up to {_MOST_NUMBER:.0e}", raw)
    return float(raw)


def truth(raw: object) -> bool:
    """True or false; raises `WrongValue` otherwise."""
    if not isinstance(raw, bool):
        raise wrong("true or false", raw)
    return raw


def words(raw: object) -> dict[str, str]:
    """A mapping of texts to texts, as labels are."""
    if not isinstance(raw, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in raw.items()
    ):
        raise wrong("an object of strings", raw)
    return dict(raw)


def scalar(raw: object) -> object:
    """Text, a number, or true or false."""
    if isinstance(raw, str | bool):
        return raw
    if isinstance(raw, int):
        return whole(raw)
    if isinstance(raw, float):
        return number(raw)
    raise wrong("a string, a number, or true or false", raw)


SCALARS: Mapping[object, Read] = {
    str: string,
    int: whole,
    float: number,
    bool: truth,
    object: scalar,
}


def map_of(raw: object) -> Mapping[str, Any]:
    """The object; an empty one for a value of another type."""
    return raw if isinstance(raw, Mapping) else {}


def list_of(raw: object) -> Sequence[Any]:
    """The list; an empty one for a value of another type."""
    return raw if isinstance(raw, list | tuple) else ()


def text_of(raw: object) -> str:
    """The string; an empty one for a value of another type."""
    return raw if isinstance(raw, str) else ""
