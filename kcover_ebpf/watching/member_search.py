"""Decides when to list the members of a target: listing makes the kernel walk over every thread of a group."""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.agent import (
    LISTING_LONGEST_NS,
    LISTING_OF_STRANGERS_NS,
    LISTING_SHORTEST_NS,
)

_MOST_ENDED = 4096


class MemberSearch:
    """Decides before each pass; all times are CLOCK_BOOTTIME nanoseconds."""

    def __init__(self) -> None:
        self._next_ns = self._listed_ns = 0
        self._pause_ns = LISTING_SHORTEST_NS
        self._strangers: tuple[int, int] | None = None
        self._ended_ns: dict[Pid, int] = {}

    def is_due(self, now_ns: int, strangers: tuple[int, int]) -> bool:
        """True if the members should be listed now; `strangers` as from `KernelSampler.strangers`."""
        if self._strangers is None:
            # strangers that remain after a listing are no members
            self._strangers = strangers
        since_ns = now_ns - self._listed_ns
        joined = strangers != self._strangers and since_ns >= LISTING_OF_STRANGERS_NS
        return joined or now_ns >= self._next_ns

    def listed(self, now_ns: int, *, found: bool) -> None:
        """Note that they were listed; `found`: some of them were new."""
        self._pause_ns = (
            LISTING_SHORTEST_NS if found else min(2 * self._pause_ns, LISTING_LONGEST_NS)
        )
        self._listed_ns, self._next_ns, self._strangers = now_ns, now_ns + self._pause_ns, None

    def hurry(self) -> None:
        """A pid may be reused, or a container be new: list at the next pass, and often for a while."""
        self._next_ns, self._pause_ns = 0, LISTING_SHORTEST_NS

    def ended(self, pid: Pid, at_ns: int) -> None:
        """Note that the end of a member was announced at this time."""
        self._ended_ns[pid] = at_ns
        if len(self._ended_ns) > _MOST_ENDED:
            del self._ended_ns[next(iter(self._ended_ns))]

    def living(self, listed: Iterable[int]) -> set[Pid]:
        """Listed processes whose end was not announced.

        The end is announced before their files are closed and, since Linux 6.16, before their memory is freed. That
        may take a GPU driver a while, during which their control group still lists them (kernel/exit.c: do_exit).
        """
        found = set(map(Pid, listed))
        for pid in found & self._ended_ns.keys():
            start_ns = procfs.start_ns(pid)
            if start_ns is None or start_ns <= self._ended_ns[pid]:
                found.discard(pid)
            else:
                del self._ended_ns[pid]  # the pid now belongs to another process
        return found
