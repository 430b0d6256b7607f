"""Index of the sockets of one process: those that lead to another process, and its listening ports. Pure.

A program may have thousands of idle sockets. They are not walked in each pass: changes are applied as they come, and
sockets that only listen connect the process to no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

from kcover_ebpf.facts.kernel import SocketSample

Pair = tuple[tuple[str, int], tuple[str, int]]
"""Address and port of both ends, this one first."""
_Key = TypeVar("_Key")


class Links:
    """The sockets of one process by their purpose."""

    def __init__(self) -> None:
        self.version = 0
        """Incremented when a socket with a far end comes or goes, or changes its ends or its state."""
        self._fds: dict[int, None] = {}
        self._pairs: Counter[Pair] = Counter()
        self._ports: Counter[int] = Counter()

    @property
    def fds(self) -> Collection[int]:
        """Descriptors of the sockets with a far end, in the order in which they got one."""
        return self._fds.keys()

    @property
    def pairs(self) -> Collection[Pair]:
        """The (local, remote) addresses and ports of the sockets in `fds`."""
        return self._pairs.keys()

    @property
    def ports(self) -> Collection[int]:
        """The ports on which a socket of the process listens."""
        return self._ports.keys()

    def listens_on(self, port: int) -> bool:
        """True if a socket of the process listens on this port, on any address."""
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
