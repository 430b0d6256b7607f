"""Ranks that wait for GPUs: the scenarios G1 to G8 of jobs whose devices are stubs."""

from __future__ import annotations

from bench.faultbench.faults_table import DEADLOCK, LOADER, causes
from bench.faultbench.quiet_table import quiet
from bench.faultbench.scenario import (
    BLOCKED,
    CRASHED,
    CUDA,
    HUNG,
    UNKNOWN,
    Culprit,
    Effect,
    Scenario,
)

EAGER = ("cuda-spin", "cuda-yield", "cuda-nap", "cuda-block")
"""Whose steps are no graphs."""
FEW = ("cuda-spin", "cuda-block")
SHORT = (0.5,)
STEPS = (0.5, 2.0)
IN_DEVICE = causes("device_wait", "collective_stuck")
"""Hung, and no host can show more: a suspicion says as much."""


# A table, one scenario a paragraph.
# fmt: off
GPU = (
    quiet("g1-healthy", "G1", "plain training", host="nothing", phase_s=900.0, steps_s=SHORT,
          frameworks=("cuda-spin", "cuda-block", "cuda-graph")),
    quiet("g2-long-steps", "G2", "steps of 20 s after a first one of 120 s", inject="first-step", at_first_step=True,
          phase_s=120.0, steps_s=(20.0,), frameworks=EAGER),
    quiet("g2-one-long-step", "G2", "one step in which all devices compute for 25 s", inject="device-long",
          phase_s=25.0, steps_s=SHORT, frameworks=CUDA),
    Scenario("g3-lock", "G3", "two threads of a rank take two locks crosswise", HUNG, BLOCKED,
             inject="deadlock-threads", frameworks=CUDA, steps_s=STEPS),
    Scenario("g3-sleep", "G3", "rank sleeps instead of joining", HUNG, BLOCKED, inject="sleep", frameworks=CUDA,
             steps_s=SHORT),
    Scenario("g3-loader", "G3", "loader worker sleeps for ever", HUNG, LOADER, inject="worker-sleep", frameworks=CUDA,
             steps_s=STEPS),
    Scenario("g3-gil", "G3", "interpreter lock held in a C call", HUNG, BLOCKED, inject="interpreter-lock",
             frameworks=CUDA, steps_s=SHORT, held_out=True),
    Scenario("g3-loop", "G3", "endless loop in Python", HUNG, causes("spinning", "computing"), inject="loop-python",
             frameworks=CUDA, steps_s=SHORT),
    Scenario("g3-left", "G3", "rank leaves early with code 0", HUNG | CRASHED, causes("left_early", "exited"),
             frozenset({Effect.DIED, Effect.STALLED}), inject="exit-zero", frameworks=CUDA, steps_s=SHORT),
    Scenario("g3-stop", "G3", "SIGSTOP of one rank", HUNG, causes("stopped"), host="stop", frameworks=CUDA,
             steps_s=SHORT),
    Scenario("g4-kernel", "G4", "a kernel that never ends", HUNG | UNKNOWN, IN_DEVICE, inject="endless-kernel",
             culprit=Culprit.NO_RANK, may_shut_down=False, frameworks=CUDA, steps_s=SHORT),
    Scenario("g4-link", "G4", "a dead link whose ports are up", HUNG | UNKNOWN, IN_DEVICE, inject="dead-link",
             culprit=Culprit.NO_RANK, may_shut_down=False, frameworks=CUDA, steps_s=SHORT, held_out=True),
    Scenario("g5-kinds", "G5", "one rank gathers where the others reduce", HUNG | DEADLOCK | UNKNOWN,
             IN_DEVICE | causes("collective_mismatch", "not_in_collective"), inject="kinds",
             culprit=Culprit.OPTIONAL, frameworks=FEW, steps_s=SHORT),
    Scenario("g5-sizes", "G5", "one rank reduces another size", HUNG | DEADLOCK | UNKNOWN,
             IN_DEVICE | causes("collective_mismatch", "not_in_collective"), inject="sizes",
             culprit=Culprit.OPTIONAL, frameworks=FEW, steps_s=SHORT),
    Scenario("g5-message", "G5", "a message that one rank does not receive", HUNG | DEADLOCK | UNKNOWN,
             IN_DEVICE | causes("collective_mismatch", "not_in_collective"), inject="unreceived",
             culprit=Culprit.OPTIONAL, frameworks=FEW, steps_s=SHORT, held_out=True),
    quiet("g6-evaluate", "G6", "evaluation on the device of rank 0", inject="evaluate-device", phase_s=60.0,
          steps_s=SHORT, frameworks=FEW),
    quiet("g6-http", "G6", "rank 0 waits for a server that answers after 60 s", inject="ask-remote", prepare="remote",
          phase_s=60.0, steps_s=SHORT, frameworks=FEW, held_out=True),
    quiet("g6-close", "G6", "a file server needs 60 s to close the checkpoint of rank 0", inject="save-remote",
          prepare="fuse-late-close", phase_s=60.0, steps_s=SHORT, frameworks=FEW),
    quiet("g6-fsync", "G6", "a file server needs 90 s to store the checkpoint of rank 0", inject="save-remote",
          prepare="fuse-late-sync", phase_s=90.0, steps_s=SHORT, frameworks=FEW),
    quiet("g6-upload", "G6", "rank 0 uploads 5 MB/s", inject="upload", prepare="remote", phase_s=60.0, steps_s=SHORT,
          frameworks=FEW),
    quiet("g7-loader", "G7", "the loader of one rank waits 30 s for a server", inject="loader-late", prepare="remote",
          phase_s=30.0, steps_s=SHORT, frameworks=FEW),
    quiet("g7-loaders", "G7", "the loaders of all ranks wait 30 s for a server", inject="loaders-late",
          prepare="remote", phase_s=30.0, steps_s=SHORT, frameworks=FEW),
    quiet("g7-idle", "G7", "rank 0 waits a minute for a request, the others for rank 0", inject="serve", phase_s=60.0,
          steps_s=SHORT, frameworks=FEW, held_out=True),
    quiet("g8-telemetry", "G8", "the connection of rank 0 to its telemetry is dead", host="nothing",
          arm="cut-telemetry", netns=True, phase_s=60.0, steps_s=SHORT, frameworks=FEW),
    Scenario("g8-then-lock", "G8", "the same, then two threads of a rank take two locks crosswise", HUNG, BLOCKED,
             inject="deadlock-threads", arm="cut-telemetry", netns=True, frameworks=FEW, steps_s=SHORT),
)
