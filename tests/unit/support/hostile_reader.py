"""A reader whose operations do what a tenant's bytes might make one do."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from kcover_ebpf.agent.reader.program import Note, Operation, run


def _echo(given: Mapping[str, Any], descriptors: list[int], note: Note) -> Any:
    note("here")
    return {
        "given": given["text"],
        "read": [os.read(descriptor, 100).decode() for descriptor in descriptors],
    }


def _keep_the_lock(_: Mapping[str, Any], __: list[int], note: Note) -> Any:
    note("the long line")
    return bool(re.search(r"(?:a?){64}a{64}(?:\s*\s*\s*)*x", "a" * 64 + " " * 4000))


def _block(given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    note("a pipe")
    with open(given["path"], "rb") as file:
        return file.read().decode()


def _eat(_: Mapping[str, Any], __: list[int], note: Note) -> Any:
    note("a bomb")
    return len([b"x" * (1 << 20) for _ in range(400)])


def _crash(_: Mapping[str, Any], __: list[int], note: Note) -> Any:
    note("a bad pointer")
    return ctypes.string_at(8)


def _too_much(_: Mapping[str, Any], __: list[int], ___: Note) -> Any:
    return "x" * (2 << 20)


def _lie(_: Mapping[str, Any], __: list[int], ___: Note) -> Any:
    body = b"[" * 500_000
    socket.socket(fileno=os.dup(int(sys.argv[2]))).sendall(len(body).to_bytes(4, "big") + body)
    time.sleep(60)
    return None


def _chatter(_: Mapping[str, Any], __: list[int], note: Note) -> Any:
    while True:
        note("x" * 1000)


OPERATIONS: Mapping[str, Operation] = {
    "echo": _echo,
    "lock": _keep_the_lock,
    "block": _block,
    "eat": _eat,
    "crash": _crash,
    "much": _too_much,
    "lie": _lie,
    "chatter": _chatter,
}


def main() -> NoReturn:
    run(OPERATIONS, int(sys.argv[2]))
