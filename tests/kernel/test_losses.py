"""What happens when records find no room: exits are late and whole, others are counted, no process is forgotten."""

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import replace

from kcover_ebpf.devices import families
from kcover_ebpf.facts.kernel import (
    Detail,
    Fact,
    ProcessExit,
    ProcessFork,
    ProcessTotals,
    SampleRequest,
    SocketSample,
    ThreadSample,
    Tick,
)
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.owners import of_pod
from kcover_ebpf.kernel.probes import FAMILIES, load_family
from kcover_ebpf.kernel.records import wire
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.host import SOCKET_BYTES_A_PASS
from tests.kernel.helpers import EACH_PASS, FIRINGS, of_kind, program, running, watch

TINY = replace(Settings(), ring_bytes=os.sysconf("SC_PAGE_SIZE"))


def drained(kernel: KernelSampler) -> list[Fact]:
    facts: list[Fact] = []
    while more := kernel.wait(0.1):
        facts += more
    return facts


def test_an_exit_without_room_is_reported_at_the_next_pass_with_its_status() -> None:
    rounds = 10 * FIRINGS
    with (
        KernelSampler.open(TINY) as kernel,
        running(program("repeat"), str(rounds), program("exits"), "7") as parent,
    ):
        assert parent.line() == "ready"
        kernel.watch(parent.pid)
        kernel.sample([])
        parent.say()
        children = [int(pid) for pid in parent.rest()]
        parent.wait()
        at_once = of_kind(drained(kernel), ProcessExit)
        late = of_kind(kernel.sample([]), ProcessExit)
        assert of_kind(kernel.sample([]), ProcessExit) == [], "each is reported once"
    assert late
    assert all(one.known for one in late)
    reported = {one.pid: one.exit_code for one in (*at_once, *late)}
    assert len(reported) == len(at_once) + len(late) == rounds + 1
    assert reported == {parent.pid: 0, **dict.fromkeys(map(Pid, children), 7)}


def test_lines_of_drivers_leave_room_for_exits() -> None:
    settings = replace(TINY, ring_bytes=4 * TINY.ring_bytes)
    with KernelSampler.open(settings) as kernel:
        loaded = load_family(families.LOG, kernel.maps, settings)
        children = [subprocess.Popen(["sleep", "60"]) for _ in range(FIRINGS)]
        try:
            for child in children:
                kernel.watch(Pid(child.pid))
            for number in range(2 * FIRINGS):
                # opened anew: the kernel limits the lines of each writer
                with open("/dev/kmsg", "w") as log:
                    log.write(f"<7>kcover-ebpf flood #{number}\n")
            for child in children:
                child.kill()
                child.wait()
            exits = of_kind(drained(kernel), ProcessExit)
        finally:
            loaded.close()
            for child in children:
                child.kill()
                child.wait()
        lost = kernel.lost_counts
        tick = of_kind(kernel.sample([]), Tick)[0]
    assert {one.pid for one in exits} == {child.pid for child in children}
    assert {one.signal for one in exits} == {signal.SIGKILL}
    assert lost["messages"] > 0
    assert lost["events"] == tick.lost_count == 0


def test_threads_without_room_are_counted_once_and_name_their_process() -> None:
    settings = replace(Settings(), max_threads=100)
    with (
        KernelSampler.open(settings) as kernel,
        running(program("crowd"), "threads", "199") as crowded,
        running(program("crowd"), "threads", "7") as small,
    ):
        crowded.line()
        small.line()
        watch(kernel, small.pid)
        kernel.sample([])
        watch(kernel, crowded.pid)
        passes = [kernel.sample([]) for _ in range(5)]
    assert [of_kind(other_pass_, Tick)[0].lost_count for other_pass_ in passes] == [108, 0, 0, 0, 0]
    for pass_ in passes:
        unseen = {one.pid: one.unseen_count for one in of_kind(pass_, ProcessTotals)}
        assert unseen == {small.pid: 0, crowded.pid: 108}


def test_an_end_that_nothing_announced_is_found_by_the_passes() -> None:
    # as where the kernel refuses the probe of exits, or has no memory to keep one
    families_left = [one for one in FAMILIES if one.name != "lifecycle"]
    with KernelSampler.open(Settings(), families_left) as kernel:
        children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
        for child in children:
            kernel.watch(Pid(child.pid))
        assert len(of_kind(kernel.sample([]), ThreadSample)) == 3
        dead, *alive = children
        dead.kill()
        dead.wait()
        reported = [of_kind(kernel.sample([]), ProcessExit) for _ in range(4)]
        for child in alive:
            child.kill()
            child.wait()
    assert Counter(one.pid for item in reported for one in item) == {dead.pid: 1}
    assert not [one for item in reported for one in item if one.known]


def test_a_process_without_room_is_watched_when_there_is_room_again() -> None:
    with (
        KernelSampler.open(Settings()) as kernel,
        running(program("crowd"), "threads", "1") as target,
    ):
        target.line()
        # no process has these numbers; the table cannot know
        fillers = [Pid(2**22 + number) for number in range(16_384)]
        for pid in fillers:
            kernel.watch(pid)
        kernel.watch(target.pid)
        assert of_kind(kernel.sample([]), Tick)[0].lost_count == 1
        for pid in fillers:
            kernel.unwatch(pid)
        passes = [kernel.sample([]) for _ in range(4)]
    assert [of_kind(pass_, Tick)[0].lost_count for pass_ in passes] == [0, 0, 0, 0]
    found = [of_kind(pass_, ProcessTotals) for pass_ in passes]
    assert {one.pid for item in found for one in item} == {target.pid}


def fill_shares(kernel: KernelSampler, **counts: int) -> None:
    """Have every owner appear to have so many processes, threads or sockets, until they are counted anew."""
    owners = kernel.maps["owners"]
    for key, value in list(owners.items()):
        pass_id, processes, threads, _, _, sockets = struct.unpack("=6Q", value)
        processes, threads = counts.get("processes", processes), counts.get("threads", threads)
        sockets = counts.get("sockets", sockets)
        full = pass_id, processes, threads, processes, threads, sockets
        owners.update(key, struct.pack("=6Q", *full))


def test_a_control_group_that_forks_without_end_leaves_room_for_others() -> None:
    with (
        KernelSampler.open(Settings()) as kernel,
        running(program("repeat"), str(FIRINGS), program("exits"), "7") as parent,
    ):
        assert parent.line() == "ready"
        kernel.watch(parent.pid)
        kernel.sample([])
        fill_shares(kernel, processes=4_096 - 3)
        parent.say()
        parent.rest()
        parent.wait()
        facts = drained(kernel)
        lost = of_kind(kernel.sample([]), Tick)[0].lost_count
    assert len(of_kind(facts, ProcessFork)) == FIRINGS, "they are known, though not watched"
    assert len(of_kind(facts, ProcessExit)) == 3 + 1
    assert lost == FIRINGS - 3


def test_what_was_asked_of_a_process_that_had_ended_is_forgotten_with_it() -> None:
    with KernelSampler.open(Settings()) as kernel:
        with running(program("crowd"), "threads", "1") as target:
            target.line()
            kernel.watch(target.pid)
            kernel.sample([])
        kernel.request(target.pid, SampleRequest(every=2))
        assert list(kernel.maps["details"].items()) != []
        assert of_kind(drained(kernel), ProcessExit)
        assert list(kernel.maps["details"].items()) == []


def test_a_full_table_of_what_was_asked_ends_nothing_and_is_counted() -> None:
    with KernelSampler.open(Settings()) as kernel:
        # no process has these numbers
        for number in range(16_384 + 3):
            kernel.request(Pid(2**22 + number), SampleRequest(every=2))
        assert of_kind(kernel.sample([]), Tick)[0].lost_count == 3
        assert len(list(kernel.maps["details"].items())) == 16_384


def test_the_share_of_a_control_group_is_counted_anew_at_each_pass() -> None:
    with (
        KernelSampler.open(Settings()) as kernel,
        running(program("crowd"), "threads", "199") as crowded,
        running(program("crowd"), "threads", "1") as small,
    ):
        crowded.line()
        small.line()
        kernel.watch(small.pid)
        kernel.sample([])
        fill_shares(kernel, threads=32_768 - 100)
        watch(kernel, crowded.pid, EACH_PASS)
        unseen = []
        for _ in range(3):
            totals = {one.pid: one for one in of_kind(kernel.sample([]), ProcessTotals)}
            unseen.append(totals[crowded.pid].unseen_count)
    # the pass that finds it full closes the count: what was there is visited again
    assert unseen[-1] == 0


POD, OTHER = of_pod("11111111-1111-1111-1111-111111111111"), of_pod("2")


def test_the_children_of_a_pod_take_its_share_whatever_their_control_group() -> None:
    with (
        KernelSampler.open(Settings()) as kernel,
        running(program("repeat"), str(FIRINGS), program("exits"), "7") as parent,
    ):
        assert parent.line() == "ready"
        kernel.watch(parent.pid, POD)
        kernel.sample([])
        fill_shares(kernel, processes=2_048 - 3)
        parent.say()
        parent.rest()
        parent.wait()
        lost = of_kind(kernel.sample([]), Tick)[0].lost_count
    assert lost == FIRINGS - 3


CONNECTS = """
import socket, sys
print("ready", flush=True)
sys.stdin.readline()
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(1)
c = socket.create_connection(l.getsockname()); a, _ = l.accept(); c.sendall(b"x")
print("done", flush=True)
sys.stdin.read()
"""


MANY_LISTENERS = r"""
import os, socket, sys
kept = [socket.socket() for _ in range(int(sys.argv[1]))]
for listener in kept:
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
print("ready", flush=True)
if sys.stdin.readline() and os.fork() == 0:
    print("done", flush=True)
    os.read(0, 1)
    os._exit(0)
sys.stdin.read()
"""
MOST_SAMPLES = (SOCKET_BYTES_A_PASS + 32_768) // ctypes.sizeof(wire.SocketEvent)


def test_a_pod_with_many_sockets_takes_its_share_of_a_pass() -> None:
    """What it has more comes with the passes that follow; others are read in each pass."""
    with (
        KernelSampler.open(Settings()) as kernel,
        running(sys.executable, "-c", MANY_LISTENERS, "900") as first,
        running(sys.executable, "-c", MANY_LISTENERS, "900") as second,
        running(sys.executable, "-c", MANY_LISTENERS, "900") as third,
        running(sys.executable, "-c", MANY_LISTENERS, "3") as other,
    ):
        for one, owner in ((first, POD), (second, POD), (third, POD), (other, OTHER)):
            assert one.line() == "ready"
            kernel.watch(one.pid, owner)
            kernel.request(one.pid, SampleRequest(Detail.ON))
        pids = [first.pid, second.pid, third.pid, other.pid]
        seen: set[tuple[Pid, int]] = set()
        for _ in range(4):
            samples = of_kind(kernel.sample(pids), SocketSample)
            assert len([one for one in samples if one.pid == other.pid]) == 3
            assert len(samples) <= MOST_SAMPLES + 3
            seen |= {(one.pid, one.fd) for one in samples}
        lost = kernel.lost_counts["sockets"]
    assert len(seen) == 3 * 900 + 3, "each is seen, in some pass"
    assert lost == 0


def test_a_child_takes_the_share_of_a_pass_of_its_parent() -> None:
    with (
        KernelSampler.open(Settings()) as kernel,
        running(sys.executable, "-c", MANY_LISTENERS, "1500") as parent,
    ):
        assert parent.line() == "ready"
        kernel.watch(parent.pid, POD)
        parent.say()
        assert parent.line() == "done"
        (fork,) = of_kind(drained(kernel), ProcessFork)
        pids = [parent.pid, fork.child_pid]
        for pid in pids:
            kernel.request(pid, SampleRequest(Detail.ON))
        counts = [len(of_kind(kernel.sample(pids), SocketSample)) for _ in range(4)]
        assert max(counts) <= MOST_SAMPLES


def test_a_pod_that_fills_its_share_of_sockets_leaves_room_for_others() -> None:
    with (
        KernelSampler.open(Settings()) as kernel,
        running(sys.executable, "-c", CONNECTS) as full,
        running(sys.executable, "-c", CONNECTS) as other,
    ):
        for other_running, owner in ((full, POD), (other, OTHER)):
            assert other_running.line() == "ready"
            kernel.watch(other_running.pid, owner)
        kernel.sample([full.pid, other.pid])
        fill_shares(kernel, sockets=16_384)
        owners = kernel.maps["owners"]
        key = OTHER.to_bytes(8, sys.byteorder)
        owners.update(key, bytes(48))
        for other_running in (full, other):
            other_running.say()
            assert other_running.line() == "done"
        passes = [[*drained(kernel), *kernel.sample([full.pid, other.pid])] for _ in range(3)]
        before_count = passes[:2]  # at the end of the second, sockets are counted anew
        seen = {one.pid for pass_ in before_count for one in of_kind(pass_, SocketSample)}
        lost = [of_kind(pass_, Tick)[0].lost_count for pass_ in passes]
        counts = struct.unpack("=6Q", dict(owners.items())[key])
    assert seen == {other.pid}
    assert lost == [1, 0, 0], "once for each process"
    assert counts[-1] == 3
