"""`kcover-ebpf trace`: explain a job that may be stuck already, in one run of a few seconds."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import click

from kcover_ebpf.cli.options import output_option
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host.cgroups import CgroupTarget
from kcover_ebpf.host.process_tree import PidTarget
from kcover_ebpf.run import options as planning
from kcover_ebpf.settings import Act
from kcover_ebpf.trace.options import TraceOptions
from kcover_ebpf.trace.pod_target import PodTarget, end_with_asker

_EXAMPLES = """
\b
Examples:
  kcover-ebpf trace --pid 4711
  kcover-ebpf trace --cgroup /sys/fs/cgroup/system.slice/train.service -o json
  kcover-ebpf trace train-worker-3 -n research
  kcover-ebpf trace --job train -n research --live
  kcover-ebpf trace --pid 4711 --save stuck.jsonl; kcover-ebpf trace --replay stuck.jsonl -o md

\b
Exit codes:
  0 healthy; 1 a fault was found; 2 wrong usage; 3 unknown, or cannot observe; 128 + signal interrupted
"""


@click.command(epilog=_EXAMPLES)
@click.argument("pod", required=False)
@click.option(
    "-n", "--namespace", help="Namespace of POD or --job; default: the namespace of the context."
)
@click.option("-c", "--container", help="Only this container of POD; default: all.")
@click.option("--job", metavar="NAME", help="Trace all pods of this job.")
@click.option("--kubeconfig", metavar="FILE", help="Path of the kubeconfig, as for kubectl.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option(
    "--agent-namespace", metavar="NAME", help="Namespace of the agents; default: detected."
)
@click.option("--pid", type=click.IntRange(min=1), help="Trace this process and its descendants.")
@click.option("--cgroup", metavar="PATH", help="Trace the processes of this control group.")
@click.option(
    "--pod-uid",
    multiple=True,
    metavar="UID[=NAME]",
    help="Trace a pod on this node, by uid; may be repeated.",
)
@click.option(
    "--container-id", multiple=True, metavar="ID", help="Only this container of the pod, by id."
)
@click.option("--replay", type=click.Path(path_type=Path), help="Show a saved trace.")
@click.option("--save", type=click.Path(path_type=Path), help="Also save the trace to a file.")
@click.option("--live/--once", default=False, help="Keep refreshing until interrupted.")
@click.option("--all", "every_thread", is_flag=True, help="Show every thread on its own line.")
@output_option("json: one object; jsonl: records as they are collected.", ("md", "jsonl"))
@click.option("--name", hidden=True, help="Name to show for the job.")
@click.option("--brief", is_flag=True, hidden=True, help="The verdict is known: show the threads.")
@click.option("--with-asker", is_flag=True, hidden=True, help="Exit when standard input closes.")
def trace(**options: Any) -> int:
    """Read a job once and report which thread waits for what, and which one is at fault.

    POD is a pod of the cluster that kubectl talks to; the agent on its node traces it. The table appears
    immediately, the verdict after about three seconds. Nothing is stopped or changed.
    """
    from kcover_ebpf.trace import show

    chosen_options = TraceOptions(**options)
    chosen_options.check()
    if chosen_options.replay is not None:
        return show.replay(chosen_options.replay, chosen_options)
    if chosen_options.pod or chosen_options.job:
        from kcover_ebpf.trace.gang import remote

        return show.show(remote.lines(chosen_options), chosen_options)
    if chosen_options.with_asker:
        end_with_asker(lambda: os.kill(os.getpid(), signal.SIGTERM))
    return show.here(_target(chosen_options), chosen_options)


def _target(options: TraceOptions) -> CgroupTarget | PidTarget | PodTarget:
    ours = frozenset({os.getpid()})
    target: CgroupTarget | PidTarget | PodTarget
    if options.pod_uid:
        pods = dict(_named(text) for text in options.pod_uid)
        target = PodTarget(options.name or next(iter(pods.values())), pods, options.container_id)
    elif options.pid is not None:
        planning.check_pid(options.pid, Act.OBSERVE)
        target = PidTarget(options.pid, f"pid-{options.pid}", ours)
    else:
        path = planning.find_cgroup(options.cgroup or "", Act.OBSERVE)
        target = CgroupTarget(path, path.name, ours)
    if not target.pids():
        raise UsageError(f"no process is in {target.name}; name a running job")
    return target


def _named(text: str) -> tuple[str, str]:
    uid, _, name = text.partition("=")
    return uid, name or f"pod-{uid}"
