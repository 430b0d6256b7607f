"""One pass over the threads of the watched processes: runs the BPF iterator and reads its records."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from kcover_ebpf.facts.kernel import CALM_EVERY
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.objects import BpfLink
from kcover_ebpf.kernel.probes import LoadedFamily
from kcover_ebpf.kernel.records import wire

_WALK = "walk_threads"
_VISITS = "sample_threads"
_FIRST = bytes(4)
"""Key of the only entry of an array map."""


class ThreadSampler:
    """Samples threads by one call that walks the watched processes (Linux 6.7), or by a visit to each thread."""

    def __init__(self, families: Sequence[LoadedFamily]) -> None:
        """`families`: loaded families, the base family first."""
        base = families[0]
        assert base.object is not None
        self._maps: dict[str, BpfMap] = base.object.maps
        self._samples = self._maps["samples"].memory()
        self._pass = self._maps["pass"].memory()
        self._walk = _attach_walk(families)
        self._link = self._walk or base.links[_VISITS]

    @property
    def visits_all(self) -> bool:
        """True if every thread of the machine is visited, because this kernel cannot walk single processes.

        Then totals must be read from the map `processes`, and all processes are due in the same pass.
        """
        return self._walk is None

    def state(self) -> wire.PassValue:
        """A copy of the description of the last pass."""
        return wire.PassValue.from_buffer_copy(self._pass)

    def run(self, *, is_whole: bool, least_every: int = CALM_EVERY) -> Iterator[bytes]:
        """One pass: its records, in as many blocks as the walk returned.

        `is_whole`: visit all threads of every process, whether due or not. `least_every`: the smallest interval, in
        passes, of all requests.
        """
        state = self.state()
        if (state.is_whole, state.least_every) != (is_whole, least_every):
            state.is_whole, state.least_every = is_whole, least_every
            self._maps["pass"].update(_FIRST, bytes(state))
        incomplete = True
        while incomplete:
            self._link.read_iterator()
            state = self.state()
            incomplete = bool(state.is_incomplete)
            yield self._samples[: state.used_bytes]

    def close(self) -> None:
        """Unmap the memory, and destroy the link that was made here."""
        self._samples.close()
        self._pass.close()
        if self._walk is not None:
            self._walk.destroy()


def _attach_walk(families: Sequence[LoadedFamily]) -> BpfLink | None:
    for family in families:
        if family.object is not None and _WALK in family.links:
            # Over one thread, ours: the single visit does the whole walk.
            return family.object.attach_task_iterator(_WALK, tid=os.getpid())
    return None
