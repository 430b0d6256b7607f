"""Far ends of the connections of a job's processes: another process of the job, or none. Pure.

A process may have thousands of connections. They are resolved again when one of them changed, and never more than
`LINKS_A_PASS` of them a pass on average; other passes use the pairs of processes found before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.links import Pair
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.endpoints import SERVICE_PORTS
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.host import LINKS_A_PASS

_Views = Mapping[Pid, ProcessHistory]
_DEEPEST = 8


@dataclass(slots=True)
class LinksOf:
    """Far ends of the established connections of one process."""

    peers: dict[Pid, list[int]] = field(default_factory=dict)
    """Process at the other end -> descriptors of its own connections to it (without inherited ones)."""
    away: dict[int, bool] = field(default_factory=dict)
    """Descriptors of connections to no process of the job here; True for its own, False for an inherited one."""
    ports_away: dict[str, bool] = field(default_factory=dict)
    """Both ports of each such connection unless one is a service's; True if one of the connections is its own."""


_NONE = LinksOf()


class FarEnds:
    """Far ends of all processes of one job.

    Changes are found within a pass, and later in jobs with very many connections.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._wait_passes = 0
        self._links: Mapping[Pid, LinksOf] = {}

    def observe(self, views: _Views) -> None:
        """Once a pass: resolve the connections again if they changed."""
        self._wait_passes -= 1
        key = [(pid, process.ppid, process.links.version) for pid, process in views.items()]
        if key == self._key or self._wait_passes > 0:
            return
        self._key = key
        self._links = _links_of(views)
        count = sum(len(process.links.fds) for process in views.values())
        self._wait_passes = count // LINKS_A_PASS

    def of(self, pid: Pid) -> LinksOf:
        """Far ends of one process, as of the last change."""
        return self._links.get(pid, _NONE)


def _links_of(views: _Views) -> Mapping[Pid, LinksOf]:
    holders = _holders(views)
    found: dict[Pid, LinksOf] = defaultdict(LinksOf)
    for pid, process in views.items():
        links = found[pid]
        for sample in process.connections:
            if sample.state != "ESTABLISHED":
                continue
            is_own = holders[sample.local, sample.remote] == pid
            peer = holders.get((sample.remote, sample.local))
            if peer is None:
                links.away[sample.fd] = is_own
                if min(sample.local[1], sample.remote[1]) >= SERVICE_PORTS:
                    for port in (str(sample.local[1]), str(sample.remote[1])):
                        links.ports_away[port] = is_own or links.ports_away.get(port, False)
            elif is_own:
                links.peers.setdefault(peer, []).append(sample.fd)
    return found


def _holders(views: _Views) -> Mapping[Pair, Pid]:
    """Owner of each end of a connection: of the processes that share an inherited one, the topmost."""
    found: dict[Pair, Pid] = {}
    for pid in _from_the_top(views):
        for pair in views[pid].links.pairs:
            found.setdefault(pair, pid)
    return found


def _from_the_top(views: _Views) -> Iterable[Pid]:
    return sorted(views, key=lambda pid: _depth(pid, views))


def _depth(pid: Pid, views: _Views) -> int:
    depth = 0
    while depth < _DEEPEST and (process := views.get(pid)) is not None and process.seen is not None:
        pid = process.seen.ppid
        depth += 1
    return depth
