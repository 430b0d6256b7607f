"""A container that its runtime still makes is left alone; a program that only calls itself like a runtime is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcover_ebpf.agent import containers
from kcover_ebpf.api.order import Verb
from kcover_ebpf.host import cgroups

from .helpers import state_of
from .order_bench import Bench, wait_until

pytestmark = pytest.mark.needs("root", "cgroup2")
_RUNTIME = """
import time
open("/proc/self/comm", "w").write("NAME")
print("up", flush=True)
while True: time.sleep(0.01)
"""
_RUNTIME_NAMES = ["runc:[2:INIT]", "youki:[2:INIT]", "crun", "memfd:crun_clon"]


@pytest.mark.parametrize("name", _RUNTIME_NAMES)
def test_a_container_that_is_being_made_is_left_alone(bench: Bench, name: str) -> None:
    pod = bench.pod("a")
    making = pod.add("making", program=_RUNTIME.replace("NAME", name))
    bench.registry.on_pod(pod.event())
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.processes == 3
    assert {state_of(pid) for pid in cgroups.processes(making)} in ({"R"}, {"S"}, {"R", "S"})
    bench.order(Verb.KILL, "2")
    wait_until(lambda: pod.pids() == cgroups.processes(making))


def test_a_program_that_calls_itself_like_a_runtime_is_stopped_once_it_is_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = bench.pod("a")
    pod.add("making", program=_RUNTIME.replace("NAME", "crun"))
    bench.registry.on_pod(pod.event())
    monkeypatch.setattr(containers, "CONTAINER_CREATED_NS", 0)
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.processes == 4


def test_a_copy_of_crun_in_memory_is_a_runtime(bench: Bench) -> None:
    """Before Linux 6.14 its name is a number; the link to its program says what it is."""
    pod = bench.pod("a")
    making = pod.add("making", program=_COPY)
    bench.registry.on_pod(pod.event())
    (pid,) = cgroups.processes(making)
    wait_until(lambda: "crun_cloned" in os.fspath(Path(f"/proc/{pid}/exe").readlink()))
    ack = bench.order(Verb.STOP)
    assert ack is not None
    assert ack.processes == 3


_COPY = """
import os
print("up", flush=True)
copy = os.memfd_create("crun_cloned:/proc/self/exe", 0)
os.write(copy, open("/bin/sleep", "rb").read())
os.execv(f"/proc/self/fd/{copy}", ["6", "1000"])
"""
