"""Which devices a process has open is part of the reading of its thread, as the process itself named them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from kcover_ebpf.facts.host import ReadingRequest
from kcover_ebpf.host.procfs import open_devices
from kcover_ebpf.host.thread_reader import ThreadReader, ThreadReadings
from kcover_ebpf.ids import Pid, Tid

# /dev as in its own container: names as in one that was given a GPU and an RDMA port
_SCRIPT = """
mount -t tmpfs none /dev
mkdir /dev/infiniband
: > /dev/nvidia0; : > /dev/infiniband/uverbs0; : > /dev/other
exec 3< /dev/nvidia0 4< /dev/infiniband/uverbs0 5< /dev/other
echo ready
exec sleep 60
"""
OPENED = {"/dev/nvidia0", "/dev/infiniband/uverbs0"}


@pytest.fixture
def holder() -> Iterator[Pid]:
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Pid(process.pid)
        process.kill()


def test_reading__names_the_devices_that_a_process_has_open(holder: Pid) -> None:
    asked = ReadingRequest(holder, Tid(holder), since_ns=0)
    (found,) = ThreadReader(ThreadReadings(os.uname().machine)).read([asked], timeout_s=10.0)
    assert getattr(found, "devices", None) == OPENED
    burning = ReadingRequest(holder, Tid(holder), since_ns=0, burning_sp=4096)
    (found,) = ThreadReader(ThreadReadings(os.uname().machine)).read([burning], timeout_s=10.0)
    assert getattr(found, "devices", None) == OPENED


def test_open_devices__of_a_process_that_is_gone_are_unknown_and_of_one_without_any_none() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert open_devices(Pid(process.pid)) is None
    assert open_devices(Pid(os.getpid())) == frozenset()
