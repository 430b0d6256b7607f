"""A reader that reads slowly is distinguished from one that does not read, while its writer sleeps in one call."""

import sys
import time

import pytest

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.kernel import DescriptorSample, SocketSample
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import running, until_asleep, watch

PASSES, PAUSE_S = 20, 0.1

PROGRAM = """
import os, socket, sys, time

kind, reads = sys.argv[1], sys.argv[2] == "slowly"
server = socket.create_server(("127.0.0.1", 0))
far = socket.create_connection(server.getsockname())
near, _ = server.accept()
pair = socket.socketpair()
if kind == "pipe":
    here, there = os.pipe()
else:
    here, there = (one.fileno() for one in (pair if kind == "unix" else (near, far)))

reader = os.fork()
if not reader:
    while True:
        time.sleep(0.05)
        if reads:
            os.read(here, 500)
print(there, reader, flush=True)
if kind == "pipe":
    os.write(there, bytes(1 << 26))
else:
    socket.socket(fileno=there).sendall(bytes(1 << 26))
"""
"""As a rank, it has a TCP connection, so its descriptors are read in each pass. The reader takes 10 kB a second;
a writer to a socket is not woken for that, one to a pipe is for each page."""


@pytest.mark.parametrize("manner", ["slowly", "never"])
@pytest.mark.parametrize("kind", ["pipe", "unix", "tcp"])
def test_a_slow_reader_is_seen_to_read(kernel: KernelSampler, kind: str, manner: str) -> None:
    with running(sys.executable, "-c", PROGRAM, kind, manner) as target:
        fd, reader = (int(word) for word in target.line().split())
        until_asleep(target.pid)
        time.sleep(0.3)
        views = {pid: ProcessHistory(pid, 0) for pid in (target.pid, Pid(reader))}
        for pid in views:
            watch(kernel, pid)
        began_ns = boottime_ns()
        for _ in range(PASSES):
            time.sleep(PAUSE_S)
            for fact in kernel.sample([*views]):
                if isinstance(fact, SocketSample):
                    views[fact.pid].on_socket(fact)
                elif isinstance(fact, DescriptorSample):
                    views[fact.pid].on_descriptor(fact)
        taken_ns = views[target.pid].drains.taken_ns(fd)
        read_ns = max(map(views[Pid(reader)].drains.read_ns, range(64)))
    last_ns = read_ns if kind == "tcp" else taken_ns
    if manner == "slowly":
        # at a page each 0.4 s from the pipe
        assert last_ns - began_ns > (PASSES * PAUSE_S - 0.7) * NS
    else:
        assert (taken_ns, read_ns) == (0, 0)
