"""Faults that begin in a scripted gang at a random moment, and who is to blame for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.tapebench.activities import LOCK, LOOP, SLEEP, STOPPED, on_pipe
from bench.tapebench.gang import Gang, ScriptedProcess
from bench.tapebench.shapes import LOADER_PID
from kcover_ebpf.facts.devices import DeviceFault
from kcover_ebpf.facts.host import CollectiveRank, CollectiveSide
from kcover_ebpf.facts.kernel import Fact, OomKill, ProcessExit, SignalSent
from kcover_ebpf.ids import Pid, Tid

Begin = Callable[[Gang, ScriptedProcess], list[Fact]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    begin: Begin
    """Makes it happen to a rank; returns what is announced at once."""
    names_rank: bool = True
    """False: no rank is to be named."""
    needs_loader: bool = False
    mismatch: bool = False
    """NCCL says that the rank called something else."""
    port_down: bool = False
    """A port is reported to be down for good, a minute later."""


def _becomes_stopped(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.hold(victim, STOPPED)
    pid = Pid(victim.pid)
    return [SignalSent(gang.now_ns, pid, Tid(victim.pid), 19, Pid(9), "kill")]


def _locks(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.hold(victim, LOCK)
    return []


def _sleeps(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.hold(victim, SLEEP)
    return []


def _loops(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.hold(victim, LOOP)
    return []


def _awaits_loader(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    loader = gang.processes[LOADER_PID + (victim.rank or 0)]
    gang.hold(loader, LOCK)
    gang.hold(victim, on_pipe("next batch", loader.pid))
    return []


def _never_ends(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.broken = True
    return []


def _exits(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.leave(victim)
    return [ProcessExit(gang.now_ns, Pid(victim.pid), 0, 0, False, "python3")]


def _is_killed(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.leave(victim)
    pid = Pid(victim.pid)
    sent = SignalSent(gang.now_ns, pid, Tid(victim.pid), 9, Pid(9), "kill")
    return [sent, ProcessExit(gang.now_ns, pid, 0, 9, False, "python3")]


def _runs_out_of_memory(gang: Gang, victim: ScriptedProcess) -> list[Fact]:
    gang.leave(victim)
    pid = Pid(victim.pid)
    return [
        OomKill(gang.now_ns, pid, "python3"),
        ProcessExit(gang.now_ns, pid, 0, 9, False, "python3"),
    ]


FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("stop", _becomes_stopped),
        Fault("lock", _locks),
        Fault("loader", _awaits_loader, needs_loader=True),
        Fault("sleep", _sleeps),
        Fault("python-loop", _loops),
        Fault("endless-kernel", _never_ends, names_rank=False),
        Fault("mismatch", _never_ends, mismatch=True),
        Fault("exit-0", _exits),
        Fault("kill", _is_killed),
        Fault("port-down", _never_ends, names_rank=False, port_down=True),
        Fault("oom", _runs_out_of_memory),
    )
}


def sides(victim: int, world: int) -> tuple[tuple[CollectiveRank, ...], tuple[CollectiveSide, ...]]:
    """What NCCL says of a mismatch: the odd rank, and who called what."""
    odd = CollectiveRank(victim, world, "host", launched=101, most_launched=101, comm="0x1")
    others = tuple(rank for rank in range(world) if rank != victim)
    return (odd,), (
        CollectiveSide("AllReduce 101", len(others), others),
        CollectiveSide("AllGather 51", 1, (victim,)),
    )


def port_lost(gang: Gang) -> list[Fact]:
    """What the hardware half reports of a port that did not come up again for a minute."""
    text = "RDMA port mlx5_0/1 is down: port DOWN"
    device = "0000:3b:00.0"
    return [
        DeviceFault(gang.now_ns, Pid(rank.pid), device, "port down", text, True, if_stalled=True)
        for rank in gang.ranks()
    ]
