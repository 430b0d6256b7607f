"""Which runs there are, what each is called, and how long it may take. Pure: no clock, no files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.faultbench.faults_table import FAULTS
from bench.faultbench.gpu_table import GPU
from bench.faultbench.quiet_table import QUIET
from bench.faultbench.ranks_table import RANKS
from bench.faultbench.scenario import CUDA, OWN, Scenario

MATRIX: tuple[Scenario, ...] = (*FAULTS, *QUIET, *RANKS)
SCENARIOS: tuple[Scenario, ...] = (*MATRIX, *GPU)
WORLDS = {"torch": 4, "mpi": 4, "jax": 3} | dict.fromkeys(OWN + CUDA, 3) | {"spawn-node": 4}
WARM_UP_S = 8.0
LONG_WARM_UP_S = 25.0
"""Without visible bytes, there is one sign of progress per pass, and what a job does in addition to training is
known after ten passes. So it takes longer until a job is known to train."""
WARM_UP_STEPS = 6
SLOW_WATCH_S = 100.0
"""A slow rank does no harm at once: it may be reported after many steps."""
SLOW_STEPS = 5
"""Steps of the slowed length that are watched: one alone cannot be distinguished from one long phase."""
UNKNOWN_WATCH_S = 120.0
"""A rank that computes while all others wait is named after a minute, or twice the learned threshold."""
SERVER_WATCH_S = 45.0
"""A file server is asked for 25 s before it is named, after 30 s."""
ABSENT_WATCH_S = 90.0
"""A start may take its time, and so may a verdict that a rank is missing."""
QUICK_STEP_S = 0.5
QUICK = (
    "01-kill",
    "04-oom",
    "06-stop",
    "08-freezer-v1",
    "11-loop-python",
    "13-skip-loss",
    "14-gil",
    "15-two-locks",
    "17-worker-sleep",
    "18-worker-fifo",
    "20-fuse-rank",
    "24-drop-both",
    "32-absent",
    "43-two-jobs",
    "45-slow-5",
    "q0-healthy",
    "qa-checkpoint",
    "qc-evaluate-silent",
    "qe-compile-one",
    "qi-step-lengths",
    "ql-stop-all",
    "qp-finish-apart",
)
"""The fixed subset of `run --quick`, on torch."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: a scenario on a framework, step length (seconds), repetition, and whether with background work."""

    scenario: Scenario
    framework: str
    step_s: float
    repetition: int = 0
    background: bool = False

    @property
    def name(self) -> str:
        """The run's name, which is also its result file's."""
        return f"{self.scenario.id}.{self.framework}.{self.step_s:g}s.{self.repetition}"

    @property
    def world(self) -> int:
        """Number of ranks."""
        return WORLDS[self.framework]

    def draw(self, purpose: str) -> float:
        """A number in [0, 1) that depends on the run's name and the purpose only."""
        digest = hashlib.sha256(f"{self.name}/{purpose}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    @property
    def culprit(self) -> int:
        """The rank the fault is for."""
        return int(self.draw("culprit") * self.world)

    @property
    def fault_step(self) -> int:
        """The step before which it begins: enough steps and seconds to learn, or the very first."""
        if self.scenario.at_first_step:
            return 0
        is_long = self.background or self.framework in CUDA
        warm_up_s = LONG_WARM_UP_S if is_long else WARM_UP_S
        return max(math.ceil(warm_up_s / self.step_s), WARM_UP_STEPS)

    @property
    def watch_s(self) -> float:
        """Seconds to wait for a verdict after a fault; for a phase, after its end."""
        if self.scenario.absent:
            return ABSENT_WATCH_S
        if self.scenario.is_fault and "SLOW" in self.scenario.verdicts:
            slowed_s = SLOW_STEPS * self.step_s * self.scenario.factor
            return max(SLOW_WATCH_S, slowed_s)
        if "UNKNOWN" in self.scenario.verdicts:
            return UNKNOWN_WATCH_S
        if self.scenario.prepare == "fuse-hung":
            return SERVER_WATCH_S
        if self.scenario.is_fault:
            return max(30.0, 8 * self.step_s)
        return max(6.0, 3 * self.step_s)

    @property
    def phase_limit_s(self) -> float:
        """How long a quiet phase may last before the run counts as failed."""
        steps = 30 * self.step_s
        return 4 * self.scenario.phase_s + steps + 60


def all_runs(repetitions: int = 1, scenarios: Sequence[Scenario] = MATRIX) -> list[RunSpec]:
    """Each scenario on all frameworks and step lengths that suit it; shuffled by hash."""
    runs = [
        RunSpec(scenario, framework, step_s, repetition)
        for repetition in range(repetitions)
        for scenario in scenarios
        for framework in scenario.frameworks
        for step_s in scenario.steps_s
    ]
    # An interrupted bench should have seen a bit of everything.
    return sorted(runs, key=lambda run: (run.repetition, run.draw("order")))


def quick_runs() -> list[RunSpec]:
    """The fixed quick subset."""
    return [RunSpec(s, "torch", QUICK_STEP_S) for s in SCENARIOS if s.id in QUICK]


def select(
    runs: Iterable[RunSpec], only: set[str], frameworks: set[str], steps_s: set[float]
) -> list[RunSpec]:
    """The runs that match; an empty set matches all. `only` holds ids, or numbers of the lists."""
    return [
        run
        for run in runs
        if (not only or {run.scenario.id, run.scenario.number} & only)
        and (not frameworks or run.framework in frameworks)
        and (not steps_s or run.step_s in steps_s)
    ]
