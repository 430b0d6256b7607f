"""Programs with the number of a rank that only watch the one program that they forked, which is the rank. Pure.

In-process restart (as of NVRx) and some supervisors are started as a rank is, fork, and wait. The fork inherits the
number and forms the process group; its parent is connected to no rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.started_ranks import is_numbered_fork
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Role


def forked_once(views: Mapping[Pid, ProcessHistory], certain: Collection[Pid]) -> Mapping[Pid, Pid]:
    """Living child -> the parent that may only watch it: it has the number of a rank, and no other child like it.

    `certain`: processes that are connected to a rank, and so are ranks themselves.
    """
    found: dict[Pid, list[Pid]] = defaultdict(list)
    for pid, process in views.items():
        parent = None if process.ppid is None else views.get(process.ppid)
        if parent is None or parent.pid in certain or pid in certain:
            continue
        if process.exit is None and parent.exit is None and _is_fork(process, parent):
            found[parent.pid].append(pid)
    return {children[0]: parent for parent, children in found.items() if len(children) == 1}


def _is_fork(process: ProcessHistory, parent_process: ProcessHistory) -> bool:
    roles = process.role in (Role.LOADER, Role.HELPER) and parent_process.role in (
        Role.RANK,
        Role.LAUNCHER,
    )
    if not roles or process.seen is None or parent_process.seen is None:
        return False
    return is_numbered_fork(process.seen, parent_process.seen)
