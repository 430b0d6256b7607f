"""Announced faults: each fired 23 times, 23 facts expected, each about the right process."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcover_ebpf.facts.kernel import (
    FatalSignal,
    OomKill,
    ProcessExec,
    ProcessExit,
    ProcessFork,
    SignalSent,
)
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import FIRINGS, Running, events, of_kind, program, running, until


@contextmanager
def nursery(count: int, *command: str) -> Iterator[Running]:
    """A parent that will run the command so many times, itself past its own exec."""
    with running(program("repeat"), str(count), *command) as parent:
        assert parent.line() == "ready"
        yield parent


@pytest.mark.parametrize(
    ("how", "exit_code", "by_signal"),
    [
        ("0", 0, 0),
        ("3", 3, 0),
        ("255", 255, 0),
        ("kill", 0, signal.SIGKILL),
        ("abort", 0, signal.SIGABRT),
        ("segfault", 0, signal.SIGSEGV),
        ("thread", 4, 0),
        ("leader-first", 5, 0),
    ],
)
def test_an_exit_is_reported_with_its_code_or_signal(
    kernel: KernelSampler, how: str, exit_code: int, by_signal: int
) -> None:
    with nursery(FIRINGS, program("exits"), how) as parent:
        kernel.watch(parent.pid)
        parent.say()
        pids = [int(pid) for pid in parent.rest()]
        exits = events(kernel, FIRINGS + 1, ProcessExit)
    assert len(pids) == FIRINGS
    assert [fact.pid for fact in exits] == [*pids, parent.pid]
    for fact in exits[:-1]:
        assert (fact.exit_code, fact.signal, fact.comm) == (exit_code, by_signal, "exits")
    assert (exits[-1].exit_code, exits[-1].signal) == (0, 0)


def test_children_are_watched_from_their_birth(kernel: KernelSampler) -> None:
    """Grandchildren too: a shell runs the program, and only the shell's parent was watched."""
    shell = f"{program('exits')} 7; exit 9"
    with nursery(FIRINGS, "/bin/sh", "-c", shell) as parent:
        kernel.watch(parent.pid)
        parent.say()
        pids = [int(pid) for pid in parent.rest()]
        facts = events(kernel, 6 * FIRINGS + 1, ProcessFork, ProcessExec, ProcessExit)
    kinds = Counter(type(fact) for fact in facts)
    assert kinds == {
        ProcessFork: 2 * FIRINGS,
        ProcessExec: 2 * FIRINGS,
        ProcessExit: 2 * FIRINGS + 1,
    }
    forks = of_kind(facts, ProcessFork)
    codes = {int(fact.pid): fact.exit_code for fact in of_kind(facts, ProcessExit)}
    assert [fact.child_pid for fact in forks if fact.pid == parent.pid] == pids
    assert [codes[pid] for pid in pids] == [9] * FIRINGS
    grandchildren = {fact.child_pid: fact.pid for fact in forks if fact.pid in pids}
    assert sorted(grandchildren.values()) == sorted(pids)
    assert [codes[pid] for pid in grandchildren] == [7] * FIRINGS


def test_nothing_is_reported_about_processes_that_are_not_watched(kernel: KernelSampler) -> None:
    with nursery(FIRINGS, program("exits"), "abort") as parent:
        parent.say()
        assert len(parent.rest()) == FIRINGS
        assert kernel.wait(0.3) == []
        assert [type(fact).__name__ for fact in kernel.sample([parent.pid])] == ["Tick"]


def test_a_process_that_is_no_longer_watched_is_forgotten(kernel: KernelSampler) -> None:
    with nursery(1, program("exits"), "abort") as parent:
        kernel.watch(parent.pid)
        kernel.sample([parent.pid])
        kernel.unwatch(parent.pid)
        parent.say()
        assert len(parent.rest()) == 1
        assert kernel.wait(0.3) == []
        assert len(kernel.sample([parent.pid])) == 1


def test_stop_and_continue_name_the_sender(kernel: KernelSampler) -> None:
    with running(program("crowd"), "threads", "3") as target:
        assert target.line() == "3"
        kernel.watch(target.pid)
        for _ in range(FIRINGS):
            os.kill(target.pid, signal.SIGSTOP)
            os.kill(target.pid, signal.SIGCONT)
        sent = events(kernel, 2 * FIRINGS, SignalSent)
    assert Counter(fact.signal for fact in sent) == {
        signal.SIGSTOP: FIRINGS,
        signal.SIGCONT: FIRINGS,
    }
    comm = Path("/proc/self/comm").read_text().strip()
    assert {(fact.pid, fact.sender_pid, fact.sender_comm, fact.from_outside) for fact in sent} == {
        (target.pid, os.getpid(), comm, False)
    }


def _children(pid: Pid) -> list[Pid]:
    return [
        Pid(int(child)) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


def test_a_signal_from_outside_of_a_pid_namespace_is_known_from_one_within(
    kernel: KernelSampler,
) -> None:
    script = "sleep 60 & echo $!; read _; kill -STOP $!; echo stopped; read _; kill -9 $!"
    with running("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script) as target:
        assert target.line() == "2"
        (sleeper,) = _children(*_children(target.pid))
        kernel.watch(sleeper)
        os.kill(sleeper, signal.SIGCONT)
        target.say()
        assert target.line() == "stopped"
        sent = events(kernel, 2, SignalSent)
        target.say()
    assert [(fact.signal, fact.from_outside) for fact in sent] == [
        (signal.SIGCONT, True),
        (signal.SIGSTOP, False),
    ]


@pytest.mark.parametrize(
    ("how", "number", "from_kernel"),
    [("abort", signal.SIGABRT, False), ("segfault", signal.SIGSEGV, True)],
)
def test_a_fatal_signal_is_reported_with_its_sender(
    kernel: KernelSampler, how: str, number: int, from_kernel: bool
) -> None:
    with nursery(FIRINGS, program("exits"), how) as parent:
        kernel.watch(parent.pid)
        parent.say()
        pids = [int(pid) for pid in parent.rest()]
        sent = events(kernel, FIRINGS, SignalSent)
    assert [(fact.pid, fact.signal) for fact in sent] == [(pid, number) for pid in pids]
    assert [fact.sender_pid for fact in sent] == [0 if from_kernel else pid for pid in pids]


@pytest.mark.parametrize(
    ("how", "number"),
    [("abort", signal.SIGABRT), ("segfault", signal.SIGSEGV), ("kill", signal.SIGKILL)],
)
def test_a_signal_that_ends_a_process_is_reported_when_it_is_delivered(
    kernel: KernelSampler, how: str, number: int
) -> None:
    with nursery(FIRINGS, program("exits"), how) as parent:
        kernel.watch(parent.pid)
        parent.say()
        pids = [int(pid) for pid in parent.rest()]
        facts = events(kernel, 2 * FIRINGS + 1, FatalSignal, ProcessExit)
    fatal = of_kind(facts, FatalSignal)
    assert [(fact.pid, fact.signal, fact.comm) for fact in fatal] == [
        (pid, number, "exits") for pid in pids
    ]
    ended = {fact.pid: fact.boottime_ns for fact in of_kind(facts, ProcessExit)}
    assert all(fact.boottime_ns < ended[fact.pid] for fact in fatal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU])
def test_one_delivery_is_reported_of_a_process_with_many_threads(
    kernel: KernelSampler, number: int
) -> None:
    """By what it dies of, not by the SIGKILL with which the kernel ends the other threads."""
    with running(program("crowd"), "threads", "23") as target:
        assert target.line() == "23"
        kernel.watch(target.pid)
        os.kill(target.pid, number)
        facts = events(kernel, 2, FatalSignal, ProcessExit)
    assert [type(fact) for fact in facts] == [FatalSignal, ProcessExit]
    (fatal,), (leaving,) = of_kind(facts, FatalSignal), of_kind(facts, ProcessExit)
    assert (fatal.pid, fatal.signal) == (leaving.pid, leaving.signal) == (target.pid, number)


def test_a_core_dump_is_announced_before_it_is_written(
    kernel: KernelSampler, tmp_path: Path
) -> None:
    code = (
        "import ctypes, os, resource; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1));"
        f"os.chdir({str(tmp_path)!r}); b = bytearray(os.urandom(1 << 20)) * 512;"
        "print(); input(); ctypes.string_at(0)"
    )
    with running(sys.executable, "-uc", code) as target:
        target.line()
        kernel.watch(target.pid)
        target.say()
        facts = events(kernel, 2, FatalSignal, ProcessExit)
    (fatal,), (leaving,) = of_kind(facts, FatalSignal), of_kind(facts, ProcessExit)
    assert (fatal.signal, leaving.signal) == (signal.SIGSEGV, signal.SIGSEGV)
    if leaving.core_dumped:
        assert leaving.boottime_ns - fatal.boottime_ns > 50_000_000


def test_a_signal_that_a_process_handles_or_ignores_is_not_announced_as_its_end(
    kernel: KernelSampler,
) -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGABRT, lambda *_: None);"
        "signal.signal(signal.SIGQUIT, signal.SIG_IGN); print(); input();"
        "[os.kill(os.getpid(), number) for _ in range(23) for number in (6, 3)]"
    )
    with running(sys.executable, "-uc", code) as target:
        target.line()
        kernel.watch(target.pid)
        target.say()
        facts = events(kernel, 1, FatalSignal, ProcessExit)
    assert [type(fact) for fact in facts] == [ProcessExit]
    assert [fact.signal for fact in of_kind(facts, ProcessExit)] == [0]


@pytest.fixture
def small_memory() -> str:
    """A shell command that puts itself into a cgroup with 16 MiB of memory."""
    for root, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        if not (Path(root) / "cgroup.procs").exists():
            continue
        group = Path(root) / f"kcover-test-{os.getpid()}"
        group.mkdir(exist_ok=True)
        if (group / limit).exists():
            (group / limit).write_text("16777216")
            return f"echo $$ > {group}/cgroup.procs"
        group.rmdir()
    pytest.skip("needs memory: no memory controller of cgroups")


def test_victims_of_the_oom_killer_are_reported(kernel: KernelSampler, small_memory: str) -> None:
    shell = f"{small_memory}; exec {program('hog')}"
    with nursery(FIRINGS, "/bin/sh", "-c", shell) as parent:
        kernel.watch(parent.pid)
        parent.say()
        pids = [int(pid) for pid in parent.rest()]
        facts = events(kernel, 2 * FIRINGS + 1, OomKill, ProcessExit)
    group = Path(small_memory.split("> ")[1].removesuffix("/cgroup.procs"))
    until(lambda: _removed(group), "the cgroup to be empty")
    victims = of_kind(facts, OomKill)
    assert [(fact.pid, fact.comm) for fact in victims] == [(pid, "hog") for pid in pids]
    killed = [fact for fact in of_kind(facts, ProcessExit) if fact.pid != parent.pid]
    assert [(fact.pid, fact.signal) for fact in killed] == [(pid, signal.SIGKILL) for pid in pids]


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def test_an_exec_changes_the_name(kernel: KernelSampler) -> None:
    code = "import os, sys; print(); sys.stdin.readline(); os.execv('/bin/sleep', ['sleep', '0'])"
    with running(sys.executable, "-uc", code) as target:
        target.line()
        kernel.watch(target.pid)
        target.say()
        facts = events(kernel, 2, ProcessExec, ProcessExit)
    assert [type(fact) for fact in facts] == [ProcessExec, ProcessExit]
    assert [fact.comm for fact in of_kind(facts, ProcessExec)] == ["sleep"]
    assert [fact.comm for fact in of_kind(facts, ProcessExit)] == ["sleep"]


def test_faults_that_a_process_handles_are_not_reported(kernel: KernelSampler) -> None:
    with running(program("handled"), "1000") as target:
        kernel.watch(target.pid)
        target.say()
        found = events(kernel, 2, SignalSent, ProcessExit)
    assert [type(one) for one in found] == [SignalSent, ProcessExit]
    assert [one.signal for one in of_kind(found, SignalSent)] == [signal.SIGSEGV]
    assert [one.signal for one in of_kind(found, ProcessExit)] == [signal.SIGSEGV]
