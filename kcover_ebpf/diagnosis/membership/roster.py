"""Who is what in a job, derived from its processes once and valid until one of them changes."""

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
    """The processes of a job by what they are for."""

    all_ranks: _Views
    """Ranks, living or not."""
    ranks: _Views
    """Living ranks."""
    owned: _Views
    """Living ranks and the living processes that belong to one."""
    loaders: _Views
    """Living children of ranks that run the ranks' own program."""
    children: Mapping[Pid, Sequence[ProcessHistory]]
    """By rank, the living processes that belong to it, itself not included."""
    local_size: int | None
    """Ranks that their launcher started on this host; None where none says so, or they do not agree."""


def roster_of(views: _Views) -> Roster:
    """The roster as of now."""
    all_ranks = {
        pid: view
        for pid, view in views.items()
        if view.membership is not None and view.membership.role is Role.RANK
    }
    owned, loaders = {}, {}
    children: dict[Pid, list[ProcessHistory]] = defaultdict(list)
    for pid, process in views.items():
        member = process.membership
        if member is None or member.owner is None:
            continue
        if process.is_dumping and member.owner != pid:
            # it is waited for until its core is written
            children[member.owner].append(process)
        if process.exit is not None:
            continue
        owned[pid] = process
        if member.role is Role.LOADER:
            loaders[pid] = process
        if member.owner != pid:
            children[member.owner].append(process)
    ranks = {pid: view for pid, view in all_ranks.items() if view.exit is None}
    return Roster(all_ranks, ranks, owned, loaders, children, _local_size(all_ranks))


def _local_size(all_ranks: _Views) -> int | None:
    environs = (process.seen.rank_environ for process in all_ranks.values() if process.seen)
    sizes = {size for environ in environs if (size := local_size_of(environ)) is not None}
    return sizes.pop() if len(sizes) == 1 else None
