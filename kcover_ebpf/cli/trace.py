"""`kcover-ebpf trace`: explain a job that may be stuck already, in one look of a few seconds."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kcover_ebpf.cli import plan as planning
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host.cgroups import CgroupTarget
from kcover_ebpf.host.trees import PidTarget
from kcover_ebpf.settings import Act

_EXAMPLES = """
\b
Examples:
  kcover-ebpf trace --pid 4711
  kcover-ebpf trace --cgroup /sys/fs/cgroup/system.slice/train.service -o json
  kcover-ebpf trace --pid 4711 --save stuck.jsonl; kcover-ebpf trace --replay stuck.jsonl -o md

\b
Exit codes:
  0 healthy; 1 a fault was found; 2 wrong usage; 3 cannot observe
"""


@click.command(epilog=_EXAMPLES)
@click.option("--pid", type=click.IntRange(min=1), help="This process and its descendants.")
@click.option("--cgroup", metavar="PATH", help="The processes of this control group.")
@click.option("--replay", type=click.Path(path_type=Path), help="Show a look that was saved.")
@click.option("--save", type=click.Path(path_type=Path), help="Write the look to a file as well.")
@click.option("--live/--once", default=False, help="Look again and again; once is the default.")
@click.option("--all", "every", is_flag=True, help="A line for every thread.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "md", "jsonl"]),
    default="text",
    show_default=True,
    help="json: one object; jsonl: its parts as they come.",
)
def trace(  # noqa: PLR0913, PLR0917 - an option each
    pid: int | None,
    cgroup: str | None,
    replay: Path | None,
    save: Path | None,
    live: bool,
    every: bool,
    output: str,
) -> int:
    """Take one look at a job and say which thread waits for what, and whose fault it is.

    The table comes at once, the verdict after about three seconds. Nothing is stopped or changed.
    """
    from kcover_ebpf.cli import looking

    how = looking.How(output=output, live=live, every_thread=every, save=save)
    how.check()
    if [pid, cgroup, replay].count(None) != 2:
        raise UsageError("name one job: --pid PID or --cgroup PATH, or a saved look: --replay FILE")
    if replay is not None:
        return looking.replay(replay, how)
    return looking.here(_target(pid, cgroup), how)


def _target(pid: int | None, cgroup: str | None) -> CgroupTarget | PidTarget:
    ours = frozenset({os.getpid()})
    target: CgroupTarget | PidTarget
    if pid is not None:
        planning.check_pid(pid, Act.OBSERVE)
        target = PidTarget(pid, f"pid-{pid}", ours)
    else:
        path = planning.find_cgroup(cgroup or "", Act.OBSERVE)
        target = CgroupTarget(path, path.name, ours)
    if not target.pids():
        raise UsageError(f"no process is in {target.name}; name a running job")
    return target
