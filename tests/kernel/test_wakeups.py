"""Which events end a wait for the next pass, and which are only there at its end."""

import os
import signal
import socket
import threading
import time

from kcover_ebpf.facts.kernel import ProcessExit, SignalSent, TcpStateChange
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import of_kind, running

ME = Pid(os.getpid())


def test_connections_that_change_end_no_wait_and_are_there_at_its_end(
    kernel: KernelSampler,
) -> None:
    kernel.watch(ME)
    with socket.create_server(("127.0.0.1", 0)):
        began = time.monotonic()
        changes = of_kind(kernel.wait(0.3), TcpStateChange)
    assert time.monotonic() - began >= 0.3
    assert {one.pid for one in changes} == {ME}


def test_a_kill_ends_a_wait_behind_connections_that_changed(kernel: KernelSampler) -> None:
    kernel.watch(ME)
    with socket.create_server(("127.0.0.1", 0)), running("sleep", "1000") as target:
        kernel.watch(target.pid)
        os.kill(target.pid, signal.SIGKILL)
        facts = kernel.wait(3600.0)
    assert of_kind(facts, TcpStateChange)
    assert of_kind(facts, SignalSent, ProcessExit)


def test_so_many_connections_that_room_gets_scarce_end_a_wait(kernel: KernelSampler) -> None:
    kernel.watch(ME)

    def connect() -> None:
        for _ in range(2048):
            socket.create_server(("127.0.0.1", 0)).close()

    maker = threading.Thread(target=connect)
    maker.start()
    changes = of_kind(kernel.wait(3600.0), TcpStateChange)
    maker.join()
    assert len(changes) > 1000
    assert kernel.lost_counts["messages"] == 0
