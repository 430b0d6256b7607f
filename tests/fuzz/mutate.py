"""Mutates JSON as a tree: flipped bytes of a text are seldom JSON, and never reach what reads the values."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

_ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1 << 63,
    1 << 64,
    10**400,
    0.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "0",
    "\0",
    "\n",
    "\x1b[2J",
    "\ud800",
    "é" * 40,
    "x" * 5000,
    "2026-01-02T03:04:05Z",
    "9999-12-31T23:59:59.999999-23:59",
    "0001-01-01T00:00:00+23:59",
    [],
    {},
    [[]],
    {"": ""},
)
_MOST_CHANGES = 4
_MOST_BYTES = 16 * 1024
"""Of a tree that is changed as one: what is copied seventy times must fit into the memory of the process."""


def mutated(data: bytes, most_bytes: int, seed: int, of_bytes: Callable[[bytes], bytes]) -> bytes:
    """Another input from `data`; `of_bytes` mutates what is no JSON, and every tenth input."""
    chance = random.Random(seed)
    if len(data) > _MOST_BYTES or chance.random() < 0.1:
        return of_bytes(data)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return of_bytes(data)
    changed = data
    for _ in range(chance.randint(1, _MOST_CHANGES)):
        tree = _changed(tree, chance)
        try:
            longer = json.dumps(tree).encode("ascii")
        except (ValueError, RecursionError):
            break
        # asked after each change: copies of copies would be more than fits into memory
        if len(longer) > min(most_bytes, 4 * _MOST_BYTES):
            break
        changed = longer
    return changed


def _changed(tree: Any, chance: random.Random) -> Any:
    """The tree with one node changed."""
    places = list(_places(tree))
    if not places:
        return chance.choice(_ODD)
    holder, key = chance.choice(places)
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1:
            _, other = chance.choice(places), chance.choice(places)
            holder[key] = json.loads(json.dumps(other[0][other[1]]))
        case 2 if isinstance(holder, list):
            holder += [holder[key]] * chance.choice((1, 2, 70))
        case 3 if isinstance(holder, dict):
            holder[chance.choice(("", "x", "\ud800", *map(str, holder)))] = holder.pop(key)
        case 4:
            holder[key] = _near(holder[key], chance)
        case _:
            holder[key] = chance.choice(_ODD)
    return tree


def _near(value: Any, chance: random.Random) -> Any:
    """A value like this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return chance.choice((-value, value + 1, value * 1000, str(value)))
    if isinstance(value, str) and value:
        at = chance.randrange(len(value))
        letter = chance.choice((*"0-.:/ []{}#%\\", chr(chance.randrange(0x3000))))
        return chance.choice((value[:at], value[:at] + letter + value[at:], value * 2))
    return [value]


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()  # fmt: skip
        for key in keys:
            found.append((node, key))
            waiting.append(node[key])
    return found
