"""Which sockets of one process lead to another one, and where it listens: kept one socket at a time. Pure.

A program may hold thousands of sockets that are at rest. They are not walked in each pass: what changes is taken as it
comes, and those that only listen connect the process to no one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

from kcover_ebpf.facts.kernel import SocketSample

Pair = tuple[tuple[str, int], tuple[str, int]]
"""The addresses and ports of both ends, this one first."""
_Key = TypeVar("_Key")


class Links:
    """The sockets of one process by what they are."""

    def __init__(self) -> None:
        self.version = 0
        """Grows when a socket with a far end comes or goes, or changes its ends or its state."""
        self._fds: dict[int, None] = {}
        self._pairs: Counter[Pair] = Counter()
        self._ports: Counter[int] = Counter()

    @property
    def fds(self) -> Collection[int]:
        """Descriptors of the sockets with a far end, in the order in which they got one."""
        return self._fds.keys()

    @property
    def pairs(self) -> Collection[Pair]:
        """The (local, remote) addresses and ports of these."""
        return self._pairs.keys()

    def listens_on(self, port: int) -> bool:
        """True where a socket of the process takes connections to this port, on any address."""
        return port in self._ports

    def observe(self, previous_sample: SocketSample | None, sample: SocketSample) -> None:
        """Take a sample; `previous_sample`: the last one of the same descriptor, None for the first."""
        if previous_sample is not None and _identity(previous_sample) == _identity(sample):
            return
        if previous_sample is not None:
            self._leave(previous_sample)
        if sample.state == "LISTEN":
            self._ports[sample.local[1]] += 1
        if sample.remote[1]:
            self._fds[sample.fd] = None
            self._pairs[sample.local, sample.remote] += 1
            self.version += 1
        else:
            self._fds.pop(sample.fd, None)

    def _leave(self, sample: SocketSample) -> None:
        if sample.state == "LISTEN":
            _lower(self._ports, sample.local[1])
        if sample.remote[1]:
            _lower(self._pairs, (sample.local, sample.remote))
            self.version += 1


def _lower(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _identity(sample: SocketSample) -> tuple[object, ...]:
    return sample.local, sample.remote, sample.state
