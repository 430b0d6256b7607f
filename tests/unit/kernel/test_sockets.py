"""Whose descriptors a pass walks: each process in turn, and of one pod no more than its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.objects import BpfLink, BpfObject
from kcover_ebpf.kernel.sockets import SocketSampler
from kcover_ebpf.tunables.host import SOCKET_WALK_NS_A_PASS

LARGE_POD, SMALL_POD = 1, 2
PAUSES_NS = SOCKET_WALK_NS_A_PASS // 10


class Kernel:
    """Walks that find nothing, and take as long as they are made to."""

    def __init__(self, costs_ns: dict[Pid, int]) -> None:
        self.costs_ns, self.cpu_ns = costs_ns, 0
        self.walked: Counter[Pid] = Counter()

    def attach_task_iterator(self, program: str, *, pid: int = 0, tid: int = 0) -> BpfLink:
        return cast(BpfLink, Walk(self, Pid(tid or pid)))


class Walk:
    """A link and a walk of it, which pauses now and then."""

    def __init__(self, kernel: Kernel, pid: Pid) -> None:
        self._kernel, self._pid = kernel, pid
        self._left_ns = 0

    @property
    def is_over(self) -> bool:
        return self._left_ns <= 0

    def walk(self) -> Walk:
        self._left_ns = self._kernel.costs_ns.get(self._pid, 0)
        return self

    def read(self, most_bytes: int) -> bytes:
        part_ns = min(self._left_ns, PAUSES_NS)
        self._kernel.cpu_ns += part_ns
        self._left_ns -= part_ns
        self._kernel.walked[self._pid] += self.is_over
        return b""

    def close(self) -> None: ...

    def destroy(self) -> None: ...


@contextmanager
def sampler(kernel: Kernel, owners: dict[Pid, int]) -> Iterator[SocketSampler]:
    """Over these processes, each of which has a connection."""
    made = SocketSampler(
        cast(BpfObject, kernel),
        cast(BpfLink, Walk(kernel, Pid(0))),
        owners,
        announced=True,
        cpu_ns=lambda: kernel.cpu_ns,
    )
    for pid in owners:
        made.has_connection(pid)
    yield made
    made.close()


def test_sockets__who_takes_long_to_walk_takes_turns_and_others_wait_for_none() -> None:
    """A walk that is longer than a pod's share continues in the next pass."""
    large, small = [Pid(number) for number in range(10, 14)], Pid(20)
    kernel = Kernel(dict.fromkeys(large, 3 * SOCKET_WALK_NS_A_PASS))
    owners = {**dict.fromkeys(large, LARGE_POD), small: SMALL_POD}
    costs_ns = []
    with sampler(kernel, owners) as sockets:
        for number in range(1, 25):
            before_ns = kernel.cpu_ns
            sockets.read([*large, small], number)
            costs_ns.append(kernel.cpu_ns - before_ns)
            assert len(sockets.behind()) >= len(large) - 1
    assert costs_ns == 24 * [SOCKET_WALK_NS_A_PASS]
    assert kernel.walked == {**dict.fromkeys(large, 2), small: 24}


def test_sockets__within_its_share_all_of_a_pod_is_walked_in_each_pass() -> None:
    pids = [Pid(number) for number in range(10, 18)]
    kernel = Kernel(dict.fromkeys(pids, SOCKET_WALK_NS_A_PASS // 10))
    with sampler(kernel, dict.fromkeys(pids, LARGE_POD)) as sockets:
        for number in range(1, 4):
            sockets.read(pids, number)
            assert not sockets.behind()
    assert kernel.walked == dict.fromkeys(pids, 3)
