"""`kcover-ebpf run`: watch a job of our own or a running one, and act on what is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from kcover_ebpf.cli.options import (
    catalog_option,
    metrics_option,
    nccl_probes_option,
    output_option,
)
from kcover_ebpf.errors import UsageError
from kcover_ebpf.run import options as planning
from kcover_ebpf.run.join import options as joining
from kcover_ebpf.run.options import RunOptions
from kcover_ebpf.settings import Act

_EXAMPLES = """
\b
Examples:
  kcover-ebpf run -- python3 train.py                      watch and report only
  kcover-ebpf run --act shutdown -- torchrun train.py      shut the whole job down on a fault
  kcover-ebpf run --act restart --max-restarts 2 -- mpirun -n 4 python3 train.py
  kcover-ebpf run --log train.log --policy p.toml -- torchrun train.py > train.log 2>&1
  kcover-ebpf run --live -- torchrun train.py              a grid of all ranks below the job's output
  kcover-ebpf run --pid 4711 --for 30s -o json             watch a running process tree
  kcover-ebpf run --cgroup /sys/fs/cgroup/system.slice/train.service

\b
Exit codes:
  the job's own (128+signal if a signal ended it); 75 if it was ended on a verdict;
  2 wrong usage; 3 cannot observe; with --for: 0 healthy, 1 fault open
"""


@click.command(epilog=_EXAMPLES, context_settings={"ignore_unknown_options": False})
@click.option(
    "--act",
    type=click.Choice([act.value for act in Act]),
    default=Act.OBSERVE.value,
    show_default=True,
    help="Action on a fault verdict; each level includes the previous ones.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    help="Maximum number of restarts with --act restart.",
)
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with thresholds, budgets and [[job_rule]]s.",
)
@catalog_option()
@click.option(
    "--pin-driver",
    is_flag=True,
    help="Also use the GPU driver's tracepoint; the driver then cannot be unloaded while this runs.",
)
@nccl_probes_option()
@click.option(
    "--for", "duration", metavar="DURATION", help="Stop after this long, for example 90s or 2h."
)
@click.option(
    "--live",
    is_flag=True,
    help="On a terminal, show a grid of all ranks and when the job will be ended; otherwise print plain lines.",
)
@output_option("json: JSON lines on stdout; the job's own output goes to stderr.")
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what was observed to a tape for kcover-ebpf replay; compressed if FILE ends in .gz.",
)
@click.option(
    "--record-names",
    is_flag=True,
    help="Do not mask names of programs and files, addresses and arguments in the tape.",
)
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File with the job's output, searched for steps, hints and lines of the policy's job rules; not with --join.",
)
@metrics_option("Serve Prometheus metrics at this address.")
@click.option(
    "--snapshot-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("kcover-snapshots"),
    show_default=True,
    help="Directory for bundles of evidence.",
)
@click.option(
    "--join",
    metavar="HOST[:PORT]",
    help="For a job on several hosts: the `run` on HOST decides for all of them (port 29479).",
)
@click.option(
    "--join-hosts", type=int, metavar="N", help="Number of hosts of the job, with --join."
)
@click.option(
    "--join-secret",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the secret that all hosts share, with --join; readable by its owner only.",
)
@click.option("--pid", type=click.IntRange(min=1), help="Watch this process and its descendants.")
@click.option("--cgroup", metavar="PATH", help="Watch the processes of this control group.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
def run(  # noqa: PLR0913 - one for each option
    *,
    act: str,
    max_restarts: int | None,
    policy: Path | None,
    catalog: Path | None,
    pin_driver: bool,
    nccl_probes: bool,
    duration: str | None,
    live: bool,
    output: str,
    record: Path | None,
    record_names: bool,
    logs: tuple[Path, ...],
    metrics: str | None,
    snapshot_dir: Path,
    join: str | None,
    join_hosts: int | None,
    join_secret: Path | None,
    pid: int | None,
    cgroup: str | None,
    argv: tuple[str, ...],
) -> int:
    """Watch a job for hangs and faults; with --act shutdown or restart, act on the job as a whole.

    CMD runs in its own control group and is ended with this command (Ctrl-C, SIGTERM). A job watched
    by --pid or --cgroup keeps running.
    """
    if record_names and record is None:
        raise UsageError("--record-names needs --record FILE")
    if live and output == "json":
        raise UsageError("--live draws on a terminal; leave out -o json")
    planning.choose_target(argv, pid, cgroup)
    if join is not None and not argv:
        raise UsageError("--join needs a command after --")
    settings, job_rules = planning.make_settings(act, policy, max_restarts)
    planning.check_logs(logs, job_rules, joins=join is not None)
    settings = replace(settings, pin_driver=pin_driver, nccl_probes=nccl_probes)
    planning.check_act(settings.act, has_command=bool(argv))
    planning.check_catalog(catalog)
    name, path = planning.find_target(argv, pid, cgroup, settings.act)
    # Imported late, as for all commands: --help should not load the whole sensor.
    from kcover_ebpf.run import main

    return main.carry_out(
        RunOptions(
            settings=settings,
            name=name,
            argv=argv,
            pid=pid,
            cgroup=path,
            for_s=planning.parse_for(duration),
            json=output == "json",
            live=live,
            metrics=metrics,
            snapshot_dir=snapshot_dir.absolute(),
            catalog=catalog,
            logs=logs,
            job_rules=job_rules,
            join=joining.make(join, join_hosts, join_secret),
            record=record,
            record_names=record_names,
        )
    )
