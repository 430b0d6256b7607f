"""What one line of the fault matrix says; the lines are in faults_table.py, quiet_table.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from testbed.workloads.gpu_styles import STYLES

ALL = ("torch", "mpi", "jax")
SOCKETS = ("torch", "jax")
TORCH = ("torch",)
PLAIN = ("spawn", "spawn-node", "spawn-slurm", "numbered", "bare")
FRAMEWORKS = ("fork", "lightning", "ray", "deepspeed")
"""What needs more than torch."""
CUDA = tuple(STYLES)
"""Ranks that wait for stubs of devices."""
OWN = PLAIN + FRAMEWORKS
"""PyTorch under other launchers than ours, most of which number no process where it can be seen."""

HUNG = frozenset({"HUNG"})
CRASHED = frozenset({"CRASHED"})
LOST = frozenset({"LOST_LINK"})
SLOW = frozenset({"SLOW"})
UNKNOWN = frozenset({"UNKNOWN"})
"""Right where nothing can show that a rank will never end: if it is named."""
BLOCKED = frozenset({"blocked_lock", "blocked_sleep", "blocked_read", "blocked_unknown"})


class Effect(Enum):
    """What a fault does to the training when nothing intervenes, read from the event file."""

    DIED = "a rank ended with an error"
    STALLED = "no rank completes a step"
    SLOWED = "steps take longer"
    UNAFFECTED = "training goes on"


class Culprit(Enum):
    """Which rank is to be named."""

    RANK = "the rank chosen by the hash of the run's name"
    EITHER_END = "that rank or the next one: the fault is between them"
    OPTIONAL = "that rank, or none: the host cannot always determine it"
    NO_RANK = "no rank"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault or quiet phase; how long and how often it runs is the plan's business.

    `number` is the line of the list of 45 faults, or the letter of the list of 18 quiet phases; "ranks" for the
    jobs of `OWN`, "G1" and so on for those of `CUDA`.
    `inject` is what the workload does to itself (testbed/workloads), `host` what the injector does
    from outside, `prepare` what has to exist before the job starts and `arm` what happens once
    all ranks train. `verdicts` and `causes` are what counts as right. `effects` says how the
    training itself must react, so that a fault that did not really happen is noticed. `phase_s`
    is the length of a quiet phase in seconds.
    """

    id: str
    number: str
    title: str
    verdicts: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()
    effects: frozenset[Effect] = frozenset({Effect.STALLED})
    inject: str = ""
    host: str = ""
    prepare: str = ""
    arm: str = ""
    culprit: Culprit = Culprit.RANK
    frameworks: tuple[str, ...] = TORCH
    netns: bool = False
    may_shut_down: bool = True
    held_out: bool = False
    phase_s: float = 20.0
    factor: float = 1.0
    at_first_step: bool = False
    absent: bool = False
    bystander: bool = False
    stdin: str = ""
    needs_sensor: bool = False
    steps_s: tuple[float, ...] = (0.2, 2.0, 10.0)

    @property
    def is_announced(self) -> bool:
        """Whether the kernel announces the fault (a process died); the others are silent."""
        return self.verdicts == CRASHED

    @property
    def is_fault(self) -> bool:
        """Whether a verdict is wanted; in a quiet phase every verdict is a false one."""
        return bool(self.verdicts)


NOT_HERE: dict[str, str] = {
    "26 delay": "a delay of 200 ms needs the netem queue, which this kernel does not have",
    "30": "name look-up: not part of a running job's step; tried in the test bed with a cluster",
    "31": "an unreachable store is a fault of the start; tried in the test bed with a cluster",
    "33": "a foreign connection on NCCL's port needs NCCL, that is a GPU",
    "35": "setting the clock would disturb everything else on the host; tried in a virtual machine",
    "ranks: accelerate launch": "Debian's torch starts no elastic agent under Python 3.11; sets RANK, as torchrun does",
    "ranks: horovodrun": "Horovod has to be built against torch; its variables are tried in tests/unit",
    "36-41": "driver, PCIe and kernel faults need a stub driver in a virtual machine",
}
"""Lines of the fault list that no scenario covers here, and why."""
NOT_HERE_OF_DEVICES: dict[str, str] = {
    "G8: a node without the API server, a dead agent": "need nodes; tried in the test bed with a cluster",
    "G9: a port that is down": "needs RDMA; tapes, and a virtual machine with the kernel's software RDMA",
    "G10: many nodes": "tried in the test bed with a cluster",
}
"""The same of the scenarios of ranks that wait for devices."""
