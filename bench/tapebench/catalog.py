"""The healthy jobs that are played, by name."""

from __future__ import annotations

from collections.abc import Mapping

from bench.tapebench.activities import WAIT_STYLES
from bench.tapebench.life import any_phase
from bench.tapebench.shapes import (
    Shape,
    bubbles,
    evaluation,
    flap,
    fsync_checkpoint,
    fuse_checkpoint,
    host_evaluation,
    no_requests,
    shard_checkpoint,
    slow_load,
)

_STEP_STYLES = ("spin", "yield", "block", "ioctl")


def _steps() -> Mapping[str, Shape]:
    found = {}
    for number, (step_s, style) in enumerate(
        (step_s, style) for step_s in (0.5, 5.0, 20.0, 120.0) for style in _STEP_STYLES
    ):
        name = f"step-{step_s:g}s-{style}"
        rdma = (number + number // 4) % 2 == 0
        found[name] = Shape(name, step_s, style, rdma=rdma, proxies=rdma)
    return found


def _life() -> Mapping[str, Shape]:
    """The phases of the library of life that a tape can have, in every style in which the other ranks wait."""
    found = {}
    for number, style in enumerate(WAIT_STYLES):
        for background in (False, True):
            name = f"life-{'background-' if background else ''}{style}"
            found[name] = Shape(
                name,
                style=style,
                rdma=(number + background) % 2 == 0,
                pause=any_phase,
                every_s=(60.0, 180.0),
                loaders=True,
                http=True,
                background=background,
                helper=True,
            )
    return found


def _others() -> list[Shape]:
    return [
        Shape("graphs", 1.0, "spin", launch_share=0.003),
        Shape("graphs-20s", 20.0, "spin", launch_share=0.0005),
        Shape("clock-0.5s", 0.5, "clock", proxies=False),
        Shape("clock-5s", 5.0, "clock", rdma=False),
        Shape("clock-20s", 20.0, "clock"),
        Shape("clock-120s", 120.0, "clock", proxies=False),
        Shape("clock-autograd", 3.0, "clock", autograd=True),
        Shape("clock-evaluation", style="clock", pause=evaluation),
        Shape("one-node-no-bytes", 2.0, "spin", rdma=True, proxies=False),
        Shape("autograd", 3.0, "spin", autograd=True),
        Shape("autograd-block", 3.0, "block", autograd=True, rdma=False),
        Shape("checkpoint-fsync", pause=fsync_checkpoint),
        Shape("checkpoint-fsync-block", style="block", pause=fsync_checkpoint, rdma=False),
        Shape("checkpoint-fuse", pause=fuse_checkpoint),
        Shape("checkpoint-fuse-yield", style="yield", pause=fuse_checkpoint, rdma=False),
        Shape("checkpoint-shards", pause=shard_checkpoint),
        Shape("evaluation", pause=evaluation),
        Shape("evaluation-block", style="block", pause=evaluation, rdma=False),
        Shape("evaluation-ioctl", style="ioctl", pause=evaluation),
        Shape("metric", pause=host_evaluation),
        Shape("metric-block", style="block", pause=host_evaluation, rdma=False),
        Shape("loader", pause=slow_load, loaders=True, http=True),
        Shape("loader-block", style="block", pause=slow_load, loaders=True, http=True, rdma=False),
        Shape("dead-telemetry", dead_telemetry=True),
        Shape("dead-telemetry-block", style="block", dead_telemetry=True, rdma=False),
        Shape("flap-5s", pause=flap(5.0)),
        Shape("flap-12s", pause=flap(12.0)),
        Shape("flap-40s", pause=flap(40.0)),
        Shape("flap-40s-yield", style="yield", pause=flap(40.0)),
        Shape("pipeline", 4.0, pause=bubbles, every_s=(0.0, 0.0)),
        Shape("pipeline-block", 4.0, "block", pause=bubbles, every_s=(0.0, 0.0), rdma=False),
        Shape("inference", 0.5, pause=no_requests, every_s=(5.0, 120.0), http=True),
        Shape("inference-block", 0.5, "block", pause=no_requests, every_s=(5.0, 120.0), http=True),
        Shape("slow-start", late_s=(19.0, 60.0), hours=0.05),
        Shape("slow-start-block", style="block", late_s=(19.0, 60.0), hours=0.05, rdma=False),
    ]


SHAPES: Mapping[str, Shape] = {
    **_steps(),
    **{other.name: other for other in _others()},
    **_life(),
}
