"""`kcover-ebpf trace`: explain a job that may be stuck already, in one run of a few seconds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kcover_ebpf.cli.options import output_option
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host.cgroups import CgroupTarget
from kcover_ebpf.host.process_tree import PidTarget
from kcover_ebpf.run import options as planning
from kcover_ebpf.settings import Act
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
  0 healthy; 1 a fault was found; 2 wrong usage; 3 cannot observe
"""


@click.command(epilog=_EXAMPLES)
@click.argument("pod", required=False)
@click.option(
    "-n", "--namespace", help="Namespace of POD or --job; default: the namespace of the context."
)
@click.option("-c", "--container", help="Only this container of POD; default: all.")
@click.option("--job", metavar="NAME", help="All pods of this job.")
@click.option("--kubeconfig", metavar="FILE", help="Path of the kubeconfig, as for kubectl.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option(
    "--agent-namespace", metavar="NAME", help="Namespace of the agents; default: detected."
)
@click.option("--pid", type=click.IntRange(min=1), help="This process and its descendants.")
@click.option("--cgroup", metavar="PATH", help="The processes of this control group.")
@click.option("--pod-uid", multiple=True, metavar="UID[=NAME]", help="A pod on this node, by uid.")
@click.option(
    "--container-id", multiple=True, metavar="ID", help="Only this container of the pod, by id."
)
@click.option("--replay", type=click.Path(path_type=Path), help="Show a saved trace.")
@click.option("--save", type=click.Path(path_type=Path), help="Also save the trace to a file.")
@click.option("--live/--once", default=False, help="Keep refreshing until interrupted.")
@click.option("--all", "every", is_flag=True, help="Show every thread on its own line.")
@output_option("json: one object; jsonl: records as they are collected.", ("md", "jsonl"))
@click.option("--name", hidden=True, help="Name to show for the job.")
@click.option("--brief", is_flag=True, hidden=True, help="The verdict is known: show the threads.")
@click.option("--with-asker", is_flag=True, hidden=True, help="Exit when standard input closes.")
def trace(**options: Any) -> int:
    """Inspect a job once and report which thread waits for what, and which one is at fault.

    POD is a pod of the cluster that kubectl talks to; the agent on its node inspects it.
    The table appears immediately, the verdict after about three seconds. Nothing is stopped or changed.
    """
    from kcover_ebpf.trace import show

    wishes = Wishes(**options)
    how = show.TraceOptions(
        output=wishes.output,
        live=wishes.live,
        every_thread=wishes.every,
        save=wishes.save,
        brief=wishes.brief,
    )
    how.check()
    wishes.check()
    if wishes.replay is not None:
        return show.replay(wishes.replay, how)
    if wishes.pod or wishes.job:
        return show.show(_remote(wishes), how)
    if wishes.with_asker:
        end_with_asker(lambda: os.kill(os.getpid(), signal.SIGTERM))
    return show.here(_target(wishes), how)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options, as they are named on the command line."""

    pod: str | None
    namespace: str | None
    container: str | None
    job: str | None
    kubeconfig: str | None
    context: str | None
    agent_namespace: str | None
    pid: int | None
    cgroup: str | None
    pod_uid: tuple[str, ...]
    container_id: tuple[str, ...]
    replay: Path | None
    save: Path | None
    live: bool
    every: bool
    output: str
    name: str | None
    brief: bool
    with_asker: bool

    def check(self) -> None:
        """Raise `UsageError` unless exactly one target is named."""
        targets = (self.pod, self.job, self.pid, self.cgroup, self.pod_uid or None, self.replay)
        if sum(each is not None for each in targets) != 1:
            raise UsageError(
                "name one job: POD, --job NAME, --pid PID or --cgroup PATH, "
                "or a saved trace: --replay FILE"
            )
        if self.container is not None and self.pod is None:
            raise UsageError("--container requires a POD")


def _remote(wishes: Wishes) -> Iterator[str]:
    from kcover_ebpf.trace import remote

    wanted = remote.RemoteOptions(
        pod=wishes.pod,
        job=wishes.job,
        namespace=wishes.namespace,
        container=wishes.container,
        agent_namespace=wishes.agent_namespace,
        kubeconfig=wishes.kubeconfig,
        context=wishes.context,
        live=wishes.live,
    )
    return remote.lines(wanted)


def _target(wishes: Wishes) -> CgroupTarget | PidTarget | PodTarget:
    ours = frozenset({os.getpid()})
    target: CgroupTarget | PidTarget | PodTarget
    if wishes.pod_uid:
        pods = dict(_named(each) for each in wishes.pod_uid)
        target = PodTarget(wishes.name or next(iter(pods.values())), pods, wishes.container_id)
    elif wishes.pid is not None:
        planning.check_pid(wishes.pid, Act.OBSERVE)
        target = PidTarget(wishes.pid, f"pid-{wishes.pid}", ours)
    else:
        path = planning.find_cgroup(wishes.cgroup or "", Act.OBSERVE)
        target = CgroupTarget(path, path.name, ours)
    if not target.pids():
        raise UsageError(f"no process is in {target.name}; name a running job")
    return target


def _named(text: str) -> tuple[str, str]:
    uid, _, name = text.partition("=")
    return uid, name or f"pod-{uid}"
