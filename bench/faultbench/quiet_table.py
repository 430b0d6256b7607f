"""The quiet phases: healthy, but similar to a fault. Every verdict is a false one."""

from __future__ import annotations

from typing import Any

from bench.faultbench.scenario import ALL, Culprit, Effect, Scenario


def quiet(name: str, number: str, title: str, **more: Any) -> Scenario:
    """A scenario without a culprit in which the training comes through."""
    effects = frozenset({Effect.UNAFFECTED, Effect.SLOWED})
    return Scenario(name, number, title, effects=effects, culprit=Culprit.NO_RANK, **more)


# A table, one scenario a paragraph.
# fmt: off
QUIET = (
    quiet("q0-healthy", "-", "plain training", host="nothing", frameworks=ALL),
    quiet("qa-checkpoint", "a", "checkpoint by rank 0 with fsync", inject="checkpoint",
          prepare="name", frameworks=("torch", "mpi")),
    quiet("qa-checkpoint-direct", "a", "checkpoint in one 30 s direct write",
          inject="checkpoint-direct", prepare="name", arm="throttle-disk", phase_s=30.0,
          held_out=True),
    quiet("qb-checkpoint-slow", "b", "checkpoint to a slow file server", inject="checkpoint-slow",
          prepare="fuse-slow", held_out=True),
    quiet("qc-evaluate", "c", "evaluation on rank 0", inject="evaluate-zero", frameworks=("torch",
          "mpi")),
    quiet("qc-evaluate-silent", "c", "evaluation on rank 0 without system calls",
          inject="evaluate-silent", frameworks=ALL),
    quiet("qd-evaluate-all", "d", "evaluation on all ranks, other rhythm", inject="evaluate-all",
          held_out=True),
    quiet("qe-compile-one", "e", "rank 0 compiles, the others wait", inject="compile-one",
          phase_s=60.0, frameworks=("torch", "mpi")),
    quiet("qf-compile-all", "f", "all ranks compile", inject="compile-all", held_out=True),
    quiet("qg-slow-start", "g", "slow imports, ranks staggered", inject="slow-start",
          phase_s=60.0, frameworks=ALL),
    quiet("qh-slow-loader", "h", "loader slow, but moving", inject="slow-loader",
          prepare="big-file", steps_s=(0.2, 2.0)),
    quiet("qi-step-lengths", "i", "steps twice, then ten times as long", inject="step-lengths",
          frameworks=ALL),
    quiet("qj-heavy-tail", "j", "step times with a heavy tail", inject="heavy-tail", phase_s=40.0,
          held_out=True, steps_s=(0.2, 2.0)),
    quiet("qk-long-compute", "k", "all ranks compute for long in silence", inject="long-compute",
          frameworks=ALL),
    quiet("qk-idle", "k", "all ranks sleep for long", inject="idle-all", frameworks=ALL),
    quiet("ql-stop-all", "l", "whole job stopped and continued", host="stop-all", phase_s=15.0,
          frameworks=ALL),
    quiet("qm-debugger", "m", "debugger attached to a rank for 5 s", host="debugger", phase_s=5.0),
    quiet("qn-neighbour", "n", "busy neighbour on all processors", host="neighbour", phase_s=30.0,
          frameworks=ALL, held_out=True),
    quiet("qo-rejoin", "o", "process group formed again", inject="rejoin"),
    quiet("qo-restart", "o", "launcher restarts all ranks", host="restart-ranks", phase_s=5.0),
    quiet("qp-finish-apart", "p", "ranks finish far apart", inject="finish-apart", phase_s=40.0,
          frameworks=("torch",)),
    quiet("qq-ask-tty", "q", "rank 0 asks the user on a terminal", inject="ask-user",
          host="answer", stdin="tty"),
    quiet("qq-ask-pipe", "q", "rank 0 waits for a line on a pipe", inject="ask-user",
          host="answer", stdin="pipe", held_out=True),
    quiet("qr-checkpoint-thread", "r", "checkpoint in a thread", inject="checkpoint-thread",
          prepare="name"),
    quiet("qr-checkpoint-child", "r", "checkpoint in a child", inject="checkpoint-child",
          prepare="name"),
    quiet("26-loss-5", "26", "5% of the packets to one rank lost, hardly felt", host="loss-5",
          netns=True, phase_s=30.0),
    quiet("42-restart-sensor", "42", "sensor killed and started again", host="restart-sensor",
          phase_s=30.0, needs_sensor=True),
)
