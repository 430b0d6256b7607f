"""A process that reads what tenants wrote; its arguments are NAME and DESCRIPTOR.

It is confined before it runs (`confined.helper`). Each question is answered by a separate thread, because a read
may block forever; a stuck thread costs nothing but itself. The process ends when its connection does.
"""

from __future__ import annotations

import array
import contextlib
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

from kcover_ebpf.api.codec import Codec, Omit
from kcover_ebpf.confined.frames import FrameError, FrameReader, pack
from kcover_ebpf.host import over_bounds

_BLOCK_BYTES = 256 << 10
_MOST_DESCRIPTORS = 16
_STACK_BYTES = 512 << 10
"""Stack of a thread: the usual 8 MiB count as writable memory."""

_OPERATIONS = {
    "logs": "log_operations",
    "threads": "thread_operations",
    "answers": "answer_operations",
}
_CODEC = Codec(key=str, omit=Omit.DEFAULTS)
encode = _CODEC.encode
"""Dataclass to JSON object, as the agent and its confined readers exchange it."""
decode = _CODEC.read
"""JSON object to dataclass, as `encode` writes it; raises `WrongValue`."""
Note = Callable[[str], None]
"""Reports what is being worked on now."""
Operation = Callable[[Mapping[str, Any], list[int], Note], Any]
"""Called with arguments, descriptors that came with them (which it closes) and a `Note`; returns plain JSON."""


def operations_of(name: str) -> Mapping[str, Operation]:
    """Operations of the reader with this name; imports only what they need."""
    module = import_module(f"kcover_ebpf.agent.reader.{_OPERATIONS[name]}")
    operations: Mapping[str, Operation] = module.operations()
    return operations


_Task = tuple[int, Operation | None, Mapping[str, Any], list[int]]


def parts_of(question: Mapping[str, Any]) -> tuple[int, str, Mapping[str, Any], int]:
    """(number, operation, arguments, count of descriptors) of a question; raises `FrameError`."""
    number, name, arguments = question.get("id"), question.get("do"), question.get("with")
    count = question.get("descriptors", 0)
    if not (isinstance(number, int) and isinstance(name, str) and isinstance(arguments, Mapping)):
        raise FrameError("no question")
    if not (isinstance(count, int) and 0 <= count <= _MOST_DESCRIPTORS):
        raise FrameError("no number of descriptors")
    return number, name, arguments, count


class Server:
    """Answers the questions of one connection."""

    def __init__(self, connection: socket.socket, operations: Mapping[str, Operation]) -> None:
        self._connection, self._operations = connection, operations
        self._sending = threading.Lock()
        self._asked: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        """One token per thread that waits for a question: starting a thread costs more than most answers."""

    def serve(self) -> None:
        """Answer until the other end is closed; raises `FrameError`."""
        frames, descriptors = FrameReader(), array.array("i")
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * descriptors.itemsize)
        while True:
            block, attached, _, _ = self._connection.recvmsg(_BLOCK_BYTES, room)
            if not block:
                return
            for level, kind, data in attached:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(data[: len(data) // 4 * 4])
            for question in frames.feed(block):
                # the kernel joins questions to one block, and gives the descriptors of all of them in their order
                number, name, arguments, count = parts_of(question)
                taken, descriptors = list(descriptors[:count]), descriptors[count:]
                self._begin(number, name, arguments, taken)

    def _begin(
        self, number: int, name: str, arguments: Mapping[str, Any], descriptors: list[int]
    ) -> None:
        if name == "ping":
            self._say({"id": number, "is": True})
            return
        self._asked.put((number, self._operations.get(name), arguments, descriptors))
        if self._idle.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:
            self._say({"id": number, "no": "no thread can be started"})

    def _work(self) -> None:
        while True:
            self._answer(*self._asked.get())
            self._idle.release()

    def _answer(
        self,
        number: int,
        operation: Operation | None,
        arguments: Mapping[str, Any],
        descriptors: list[int],
    ) -> None:
        try:
            if operation is None:
                raise ValueError("there is no such operation")
            found = operation(
                arguments, descriptors, lambda text: self._say({"id": number, "at": text})
            )
            self._say({"id": number, "is": found, **_over()})
        except (Exception, FrameError) as error:  # noqa: BLE001 - whatever a tenant's bytes do is an answer
            text = f"{type(error).__name__}: {error}"[:256]
            self._say({"id": number, "no": text, **_over()})
        finally:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _say(self, answer: Mapping[str, Any]) -> None:
        frame = pack(answer)
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(frame)


def _over() -> Mapping[str, Any]:
    """Bounds that were exceeded since the last answer."""
    found = over_bounds.drained()
    return {"over": found} if found else {}


def run(operations: Mapping[str, Operation], descriptor: int) -> NoReturn:
    """Serve until the connection ends, then exit."""
    threading.stack_size(_STACK_BYTES)
    Server(socket.socket(fileno=descriptor), operations).serve()
    # threads may be stuck, and an orderly end would wait for them
    os._exit(0)


def main() -> NoReturn:
    """Entry point; the arguments are NAME and DESCRIPTOR."""
    run(operations_of(sys.argv[1]), int(sys.argv[2]))
