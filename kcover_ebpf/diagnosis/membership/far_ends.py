"""Where the connections of a job's processes lead: to which of them, or away. Pure.

A process may have thousands of connections. They are gone through when one of them changed, and never more than
`LINKS_A_PASS` of them a pass on average; in between a pass goes through the pairs of processes alone.
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
    """Where the established connections of one process lead."""

    peers: dict[Pid, list[int]] = field(default_factory=dict)
    """Descriptors of its own connections (none that it inherited) by the process at the other end."""
    away: dict[int, bool] = field(default_factory=dict)
    """By descriptor, those to none of the job here; True for its own."""
    ports_away: dict[str, bool] = field(default_factory=dict)
    """By either port of such a connection, none of it a service's; True where one of them is its own."""


_NONE = LinksOf()


class FarEnds:
    """Of all processes of one job; what changes is found within a pass, in jobs of very many connections later."""

    def __init__(self) -> None:
        self._key: object = None
        self._wait_passes = 0
        self._links: Mapping[Pid, LinksOf] = {}

    def observe(self, views: _Views) -> None:
        """Once a pass: take what changed."""
        self._wait_passes -= 1
        key = [(pid, process.ppid, process.links.version) for pid, process in views.items()]
        if key == self._key or self._wait_passes > 0:
            return
        self._key = key
        self._links = _links_of(views)
        count = sum(len(process.links.fds) for process in views.values())
        self._wait_passes = count // LINKS_A_PASS

    def of(self, pid: Pid) -> LinksOf:
        """Those of one process, as of the last time that anything was found to have changed."""
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
    """Who holds which end of a connection: of those that inherited it, whoever it was inherited from."""
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
