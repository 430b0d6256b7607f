"""Ranks that no launcher numbered where it can be seen: found all the same, named, and left alone while healthy."""

from __future__ import annotations

from typing import Any

from bench.faultbench.faults_table import causes
from bench.faultbench.quiet_table import quiet
from bench.faultbench.scenario import BLOCKED, HUNG, OWN, Scenario

NUMBER = "ranks"
_STEPS_S = (0.5,)
_COMMON: dict[str, Any] = {"frameworks": OWN, "steps_s": _STEPS_S}


# A table, one scenario a paragraph.
# fmt: off
RANKS = (
    Scenario("r-stop", NUMBER, "SIGSTOP of one rank, ranks not numbered", HUNG, causes("stopped"), host="stop",
             **_COMMON),
    Scenario("r-two-locks", NUMBER, "two threads of a rank take two locks crosswise, ranks not numbered", HUNG,
             BLOCKED, inject="deadlock-threads", **_COMMON),
    quiet("r-healthy", NUMBER, "plain training, ranks not numbered", host="nothing", phase_s=30.0, **_COMMON),
    quiet("r-checkpoint", NUMBER, "checkpoint by rank 0, ranks not numbered", inject="checkpoint", prepare="name",
          **_COMMON),
    quiet("r-validate", NUMBER, "evaluation on rank 0, ranks not numbered", inject="evaluate-zero", **_COMMON),
)
