"""What a thread waits on, where its descriptor does not say it: sockets by protocol, requests of io_uring."""

from __future__ import annotations

import ctypes
import os

import pytest

from tests.unit.support.thread_readings import reading_in

pytestmark = pytest.mark.needs("root")

SOCKETS = {
    "unix": "s, theirs = socket.socketpair()",
    "udp": "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "socket": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
}


@pytest.mark.parametrize("kind", SOCKETS)
def test_waited_files__a_socket_that_is_not_sampled_is_known_by_its_protocol(kind: str) -> None:
    found, _ = reading_in(f"import socket; {SOCKETS[kind]}; ready(); select.select([s], [], [])")
    assert [file.kind for file in found.files] == [kind]


RING = """
import ctypes, mmap, struct
r, w = os.pipe()
call, params = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(120)
ring = call(ctypes.c_long(425), 4, params)
offsets = struct.unpack("30I", params.raw)
queue, entries = mmap.mmap(ring, 4096), mmap.mmap(ring, 4096, offset=0x10000000)
room = ctypes.create_string_buffer(64)
entries[:32] = struct.pack("=BBHiQQII", OPCODE, 0, 0, r, 0, ctypes.addressof(room), 64, 0)
queue[offsets[16] : offsets[16] + 4] = struct.pack("I", 0)
queue[offsets[11] : offsets[11] + 4] = struct.pack("I", 1)
ready(); call(ctypes.c_long(426), ring, 1, 1, 1, None, 0)
"""
READ = 22


def has_rings() -> bool:
    ring: int = ctypes.CDLL(None).syscall(ctypes.c_long(425), 4, ctypes.create_string_buffer(120))
    if ring >= 0:
        os.close(ring)
    return ring >= 0


@pytest.mark.skipif(not has_rings(), reason="io_uring is switched off here")
def test_waited_files__a_ring_that_polls_a_pipe_is_no_storage() -> None:
    found, _ = reading_in(RING.replace("OPCODE", str(READ)))
    assert [file.kind for file in found.files] == ["stream"]


def test_waited_files__a_pidfd_names_its_process() -> None:
    body = "f = os.pidfd_open(os.getppid()); ready(); select.select([f], [], [])"
    found, _ = reading_in(body)
    (file,) = found.files
    assert (file.kind, file.process) == ("pidfd", os.getpid())
