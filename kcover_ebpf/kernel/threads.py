"""One walk over the watched processes: runs the sampler's program and takes out what it wrote."""

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
"""Key of the one entry of an array."""


class ThreadSampler:
    """The sampler of threads: one call that walks (Linux 6.7), else a visit to each thread."""

    def __init__(self, families: Sequence[LoadedFamily]) -> None:
        """`families`: the base family first."""
        base = families[0]
        assert base.object is not None
        self._maps: dict[str, BpfMap] = base.object.maps
        self._samples = self._maps["samples"].memory()
        self._pass = self._maps["pass"].memory()
        self._walk = _attach_walk(families)
        self._link = self._walk or base.links[_VISITS]

    @property
    def visits_all(self) -> bool:
        """Every thread of the machine is visited, for this kernel cannot walk over single processes.

        Then totals must be read from the map `processes`, and all processes have their turn in the same pass.
        """
        return self._walk is None

    def state(self) -> wire.PassValue:
        """A copy of the description of the last pass."""
        return wire.PassValue.from_buffer_copy(self._pass)

    def run(self, *, is_whole: bool, least_every: int = CALM_EVERY) -> Iterator[bytes]:
        """One pass: the records, in as many pieces as the walk returned to user space.

        `is_whole`: visit all threads of every process, whether or not it is their turn. `least_every`: of all
        requests.
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
        """Give back the mapped memory, and the link that was made here."""
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
