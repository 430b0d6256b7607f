"""The BPF maps of NCCL's operations: which processes are counted, and their counts."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping

from kcover_ebpf.collectives.nccl.counts import Birth, Counted, Launched, Messages
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.records import device_wire as wire

_KINDS = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "AlltoAll",
    "Gather",
    "Scatter",
)
"""Kinds by `device_wire.NcclOperation`, with the names of NCCL's RAS. Messages come after them and
are counted by peer."""


class Tables:
    """Each process has a fixed share of the tables, so that none can take the room of another."""

    def __init__(self, maps: Mapping[str, BpfMap]) -> None:
        self._processes, self._births = maps["nccl_processes"], maps["nccl_births"]
        self._comms, self._peers = maps["nccl_comms"], maps["nccl_peers"]
        self._lost: dict[Pid, int] = {}
        self._lost_before = 0

    def enter(self, pid: Pid) -> None:
        """Start to count a process; raises `OSError` (E2BIG if the tables are full)."""
        self._births.add(_key(pid), bytes(wire.NcclBirthsValue()))
        self._processes.add(_key(pid), bytes(wire.NcclProcessValue()))

    def remove(self, pid: Pid) -> None:
        """Drop a process and all its counts."""
        self._processes.delete(_key(pid))
        self._births.delete(_key(pid))
        for table in (self._comms, self._peers):
            # in both kinds of key, eight other bytes come first
            for key in [key for key, _ in table.items() if key[8:12] == _key(pid)]:
                table.delete(key)

    def totals(self) -> dict[Pid, int]:
        """Operations of all kinds that each counted process launched since counting began."""
        found = {}
        for pid, value in self._values():
            found[pid] = value.launched_count
            self._lost[pid] = value.lost_count
        for pid in self._lost.keys() - found.keys():
            self._lost_before += self._lost.pop(pid)
        return found

    @property
    def lost_count(self) -> int:
        """Communicators and peers that did not fit into the tables since the start, as of the last `totals`."""
        return self._lost_before + sum(self._lost.values())

    def read(self, pids: Collection[Pid]) -> Counted:
        """All counts of these processes."""
        return Counted(
            tuple(self._launched(pids)),
            tuple(self._waiting(pids)),
            tuple(self._messages(pids)),
            {
                pid: value.lost_count
                for pid, value in self._values()
                if pid in pids and value.lost_count
            },
        )

    def _values(self) -> Iterator[tuple[Pid, wire.NcclProcessValue]]:
        for key, raw in self._processes.items():
            yield _pid(key), wire.NcclProcessValue.from_buffer_copy(raw)

    def _launched(self, pids: Collection[Pid]) -> Iterator[Launched]:
        for key, raw in self._comms.items():
            pid = Pid(wire.NcclCommKey.from_buffer_copy(key).pid)
            if pid in pids:
                value = wire.NcclCommValue.from_buffer_copy(raw)
                counts = zip(_KINDS, value.launched_count, strict=False)
                yield Launched(pid, _birth(value.birth), {kind: n for kind, n in counts if n})

    def _waiting(self, pids: Collection[Pid]) -> Iterator[tuple[Pid, Birth]]:
        for key, raw in self._births.items():
            if _pid(key) in pids:
                births = wire.NcclBirthsValue.from_buffer_copy(raw).births
                yield from ((_pid(key), _birth(birth)) for birth in births if birth.address)

    def _messages(self, pids: Collection[Pid]) -> Iterator[Messages]:
        for key, raw in self._peers.items():
            nccl_peer_key = wire.NcclPeerKey.from_buffer_copy(key)
            pid = Pid(nccl_peer_key.pid)
            if pid in pids:
                value = wire.NcclPeerValue.from_buffer_copy(raw)
                yield Messages(
                    pid,
                    nccl_peer_key.identity,
                    nccl_peer_key.peer,
                    value.sent_count,
                    value.received_count,
                )


def _key(pid: Pid) -> bytes:
    return pid.to_bytes(4, sys.byteorder)


def _pid(key: bytes) -> Pid:
    return Pid(int.from_bytes(key, sys.byteorder))


def _birth(birth: wire.NcclBirth) -> Birth:
    return Birth(birth.identity, birth.size, birth.rank, birth.key, bool(birth.is_split))
