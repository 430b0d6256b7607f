"""What is fuzzed: a parser, what it may raise, and how much it is ever given."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

CORPUS = Path(__file__).parent / "corpus"

Parser = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """One parser."""

    name: str
    """Also of the directory of its corpus."""
    parse: Parser
    """Reads one input to its end; whatever is lazy is consumed."""
    most_bytes: int
    """The longest input that the parser is ever given, or that tests something new."""
    allowed: tuple[type[Exception], ...] = ()
    """What it raises for bad input, by its docstring; anything else is a crash."""
    is_json: bool = False
    """The input is JSON text, and is mutated as a tree."""


def run(target: Target, data: bytes) -> None:
    """Parse one input, cut to the bound of the target."""
    with contextlib.suppress(*target.allowed):
        target.parse(data[: target.most_bytes])


def corpus(target: Target) -> list[Path]:
    """The kept inputs, by name."""
    return sorted((CORPUS / target.name).glob("*"))


def text(data: bytes) -> str:
    """As the readers of /proc and of tools decode what they read."""
    return data.decode("utf-8", "replace")


def of_json(parse: Callable[[Any], object]) -> Parser:
    """A parser of the values that the API server's JSON is read to."""

    def parsed(data: bytes) -> object:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return parse(value) if isinstance(value, dict) else None

    return parsed


@cache
def folder() -> Path:
    """A directory of this process, in memory where there is one."""
    memory = Path("/dev/shm")
    return Path(mkdtemp(prefix="kcover-fuzz-", dir=memory if memory.is_dir() else None))


def of_file(parse: Callable[[Path], object], suffix: str) -> Parser:
    """A parser of a file, which is written anew for each input."""

    def parsed(data: bytes) -> object:
        path = folder() / f"input{suffix}"
        path.write_bytes(data)
        return parse(path)

    return parsed


def consumed(found: Iterator[object]) -> list[object]:
    """Everything that an iterator yields."""
    return list(found)
