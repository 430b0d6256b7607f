"""Reads a pickle of plain data without Python's own unpickler.

Pure. A pickle is a program: the unpickler of the standard library imports and calls what the bytes say. This
machine knows only the instructions that build numbers, texts, lists, tuples and dictionaries, with bounds on all of
them; any other instruction ends it. Source of the instructions: CPython's Lib/pickletools.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

MOST_BYTES = 4 << 20
"""Most bytes of a pickle. A recorder of 2,000 calls, PyTorch's default, dumps 0.4 MB."""
_MOST_STEPS = 600_000
"""Most instructions: 2,000 calls with 25 frames each take 145,000, and 0.2 s to read."""
_MOST_CONTAINERS = 300_000
"""Each container takes some 60 bytes of memory for one byte of the pickle."""
_MOST_MARKS = 64
"""Deepest nesting of containers that are being filled."""
_MOST_TEXT_BYTES = 64 << 10
_LONG_BYTES = 8


class PickleError(ValueError):
    """The bytes are not a pickle of plain data, or exceed a bound; the message says which."""


def load(data: bytes) -> object:
    """The value of the pickle: None, bool, int, float, str, list, tuple or dict of these; raises `PickleError`.

    Containers may contain themselves, so code that walks them needs its own bound.
    """
    if len(data) > MOST_BYTES:
        raise PickleError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return _Machine(data).run()


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._stack: list[object] = []
        self._marks: list[list[object]] = []
        self._memo: dict[int, object] = {}
        self._container_count = 0

    def run(self) -> object:
        """Execute instructions until STOP; returns the value on top of the stack."""
        for _ in range(_MOST_STEPS):
            code = self._byte()
            if code == ord("."):
                return self._result()
            step = _STEPS.get(code)
            if step is None:
                raise PickleError(_refusal(code))
            step(self)
        raise PickleError(f"it has more than {_MOST_STEPS:,} instructions")

    def _result(self) -> object:
        value = self._pop()
        if self._stack or self._marks:
            raise PickleError("it ends with something unfinished")
        return value

    # --- bytes and stack

    def _byte(self) -> int:
        if self._at >= len(self._data):
            raise PickleError("it is cut off")
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) != count:
            raise PickleError("it is cut off")
        self._at += count
        return found

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._bytes(size), "little", signed=signed)

    def _pop(self) -> object:
        if not self._stack:
            raise PickleError("it takes more than it put on the stack")
        return self._stack.pop()

    def _top(self) -> object:
        if not self._stack:
            raise PickleError("it takes more than it put on the stack")
        return self._stack[-1]

    def _items(self) -> list[object]:
        """Pop everything since the last mark, and restore the stack below it."""
        if not self._marks:
            raise PickleError("it lacks a mark")
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _push_container(self, value: object) -> None:
        self._container_count += 1
        if self._container_count > _MOST_CONTAINERS:
            raise PickleError(f"it has more than {_MOST_CONTAINERS:,} containers")
        self._stack.append(value)

    # --- instructions

    def nothing(self, size: int = 0) -> None:
        """Skip the argument of PROTO or FRAME: neither matters here."""
        self._bytes(size)

    def mark(self) -> None:
        """Set the stack aside while a container is filled."""
        if len(self._marks) >= _MOST_MARKS:
            raise PickleError(f"its containers nest more than {_MOST_MARKS} deep")
        self._marks.append(self._stack)
        self._stack = []

    def put(self, size: int) -> None:
        """Store the value on top in the memo under a number."""
        self._memo[self._number(size)] = self._top()

    def memoize(self) -> None:
        """Store the value on top in the memo under the next number."""
        self._memo[len(self._memo)] = self._top()

    def get(self, size: int) -> None:
        """Push a value from the memo, by a number of `size` bytes."""
        try:
            self._stack.append(self._memo[self._number(size)])
        except KeyError:
            raise PickleError("it refers to what is not there") from None

    def whole(self, size: int, *, signed: bool = False) -> None:
        """Push an integer of `size` bytes."""
        self._push(self._number(size, signed=signed))

    def long(self) -> None:
        """Push an integer whose first byte is its length."""
        size = self._byte()
        if size > _LONG_BYTES:
            raise PickleError("it has a number of more than 64 bits")
        self._push(self._number(size, signed=True))

    def real(self) -> None:
        """Push a float: eight bytes, big-endian."""
        self._push(struct.unpack(">d", self._bytes(8))[0])

    def text(self, size: int) -> None:
        """Push a text whose length is an integer of `size` bytes."""
        length = self._number(size)
        if length > _MOST_TEXT_BYTES:
            raise PickleError(f"it has a text of more than {_MOST_TEXT_BYTES >> 10} KiB")
        self._push(self._bytes(length).decode("utf-8", "replace"))

    def tuple_of(self, count: int) -> None:
        """Push a tuple of the `count` values on top."""
        self._push_container(tuple([self._pop() for _ in range(count)][::-1]))

    def tuple_since_mark(self) -> None:
        """Push a tuple of everything since the mark."""
        self._push_container(tuple(self._items()))

    def append(self) -> None:
        """Append the value on top to the list below it."""
        value = self._pop()
        self._list().append(value)

    def appends(self) -> None:
        """Append everything since the mark to the list below it."""
        items = self._items()
        self._list().extend(items)

    def _list(self) -> list[object]:
        target = self._top()
        if not isinstance(target, list):
            raise PickleError("it appends to something that is no list")
        return target

    def set_item(self) -> None:
        """Store the pair on top in the dictionary below it."""
        value, key = self._pop(), self._pop()
        self._fill([key, value])

    def set_items(self) -> None:
        """Store all pairs since the mark in the dictionary below it."""
        self._fill(self._items())

    def _fill(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise PickleError("it puts pairs into something that is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # hashing a key of nested tuples would recurse as deep as it nests
            if not isinstance(key, str | int):
                raise PickleError("it has a key that is neither text nor number")
            target[key] = value


_Step = Callable[[_Machine], None]
_STEPS: dict[int, _Step] = {
    0x80: lambda machine: machine.nothing(1),
    0x95: lambda machine: machine.nothing(8),
    ord("("): _Machine.mark,
    ord("q"): lambda machine: machine.put(1),
    ord("r"): lambda machine: machine.put(4),
    0x94: _Machine.memoize,
    ord("h"): lambda machine: machine.get(1),
    ord("j"): lambda machine: machine.get(4),
    ord("N"): lambda machine: machine._push(None),
    0x88: lambda machine: machine._push(True),
    0x89: lambda machine: machine._push(False),
    ord("K"): lambda machine: machine.whole(1),
    ord("M"): lambda machine: machine.whole(2),
    ord("J"): lambda machine: machine.whole(4, signed=True),
    0x8A: _Machine.long,
    ord("G"): _Machine.real,
    0x8C: lambda machine: machine.text(1),
    ord("X"): lambda machine: machine.text(4),
    ord("]"): lambda machine: machine._push_container([]),
    ord("}"): lambda machine: machine._push_container({}),
    ord(")"): lambda machine: machine._push_container(()),
    0x85: lambda machine: machine.tuple_of(1),
    0x86: lambda machine: machine.tuple_of(2),
    0x87: lambda machine: machine.tuple_of(3),
    ord("t"): _Machine.tuple_since_mark,
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
}
_CALLS = frozenset(b"ciobR\x81\x92\x93PQ\x82\x83\x84")
"""Refused: GLOBAL, INST, OBJ, BUILD, REDUCE, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, persistent ids and
extensions."""


def _refusal(code: int) -> str:
    if code in _CALLS:
        return "it asks to import or call something; refused"
    return f"it has an instruction that plain data does not need (0x{code:02x})"
