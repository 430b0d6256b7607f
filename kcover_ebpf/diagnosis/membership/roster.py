"""Roles of a job's processes in one index, computed once and valid until one of the processes changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.rank_numbers import local_size_of
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Role

_Views = Mapping[Pid, ProcessHistory]


@dataclass(frozen=True, slots=True)
class Roster:
    """The processes of a job, grouped by their purpose."""

    all_ranks: _Views
    """All ranks, including those that have ended."""
    ranks: _Views
    """The ranks that have not ended."""
    owned: _Views
    """Living ranks and the living processes that belong to one."""
    loaders: _Views
    """Living children of ranks that run the ranks' own program."""
    children: Mapping[Pid, Sequence[ProcessHistory]]
    """Rank -> the living processes that belong to it, without itself."""
    local_size: int | None
    """Number of ranks that their launcher started on this host; None if unknown, or if the ranks disagree."""


def roster_of(views: _Views) -> Roster:
    """The roster for the present state of all processes."""
    all_ranks = {
        pid: process
        for pid, process in views.items()
        if process.membership is not None and process.membership.role is Role.RANK
    }
    owned, loaders = {}, {}
    children: dict[Pid, list[ProcessHistory]] = defaultdict(list)
    for pid, process in views.items():
        member = process.membership
        if member is None or member.owner is None:
            continue
        if process.is_dumping and member.owner != pid:
            # its rank waits for it until its core is written
            children[member.owner].append(process)
        if process.exit is not None:
            continue
        owned[pid] = process
        if member.role is Role.LOADER:
            loaders[pid] = process
        if member.owner != pid:
            children[member.owner].append(process)
    ranks = {pid: process for pid, process in all_ranks.items() if process.exit is None}
    return Roster(all_ranks, ranks, owned, loaders, children, _local_size(all_ranks))


def _local_size(all_ranks: _Views) -> int | None:
    environs = (process.seen.rank_environ for process in all_ranks.values() if process.seen)
    sizes = {size for environ in environs if (size := local_size_of(environ)) is not None}
    return sizes.pop() if len(sizes) == 1 else None
