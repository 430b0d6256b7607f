"""`kcover-ebpf trace`: explain a job that may be stuck already, in one look of a few seconds."""

from __future__ import annotations

import os

import click

from kcover_ebpf.cli import plan as planning
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host.cgroups import CgroupTarget
from kcover_ebpf.host.trees import PidTarget
from kcover_ebpf.settings import Act, Settings

_EXAMPLES = """
\b
Examples:
  kcover-ebpf trace --pid 4711
  kcover-ebpf trace --cgroup /sys/fs/cgroup/system.slice/train.service -o json

\b
Exit codes:
  0 healthy; 1 a fault was found; 2 wrong usage; 3 cannot observe
"""


@click.command(epilog=_EXAMPLES)
@click.option("--pid", type=click.IntRange(min=1), help="This process and its descendants.")
@click.option("--cgroup", metavar="PATH", help="The processes of this control group.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one line, as the verdict event of run.",
)
def trace(pid: int | None, cgroup: str | None, output: str) -> int:
    """Take one look at a job and say which thread waits for what, and whose fault it is.

    Takes about three seconds and changes nothing.
    """
    if (pid is None) == (cgroup is None):
        raise UsageError("name one job: --pid PID or --cgroup PATH")
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
    return _look(target, as_json=output == "json")


def _look(target: CgroupTarget | PidTarget, *, as_json: bool) -> int:
    from kcover_ebpf import report
    from kcover_ebpf.cli import edges
    from kcover_ebpf.kernel import capabilities
    from kcover_ebpf.kernel.sampler import Kernel
    from kcover_ebpf.sensor import Sensor

    settings = Settings()
    with Kernel.open(settings) as kernel:
        capabilities.drop(spare=capabilities.SPARE)
        sensor = Sensor(kernel, target, settings)
        verdict = sensor.snapshot()
    found = edges.edges(sensor.job.members.views.values(), sensor.job.now_ns)
    if as_json:
        fields = report.verdict_object(verdict) | {"edges": found}
        click.echo(report.event_line("verdict", verdict.time_s, fields))
    else:
        lines = [*report.wait_table(verdict.waits), *edges.table(found)]
        lines += [*report.reasons(verdict), report.headline(verdict)]
        click.echo("\n".join(lines))
    return int(verdict.kind.is_fault)
