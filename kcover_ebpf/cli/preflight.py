"""`kcover-ebpf preflight`: what the init container of a pod runs before the job starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcover_ebpf.cli.options import node_kubeconfig_option
from kcover_ebpf.tunables.host import PREFLIGHT_REQUEST_S

if TYPE_CHECKING:
    from kcover_ebpf.api.node_health import ReceivedHealth

_EXAMPLES = """
\b
Examples:
  kcover-ebpf preflight --node node-2          as the init container runs it, with NODE_NAME

\b
Exit codes:
  0 the node passed its last inspection, or nothing is known of it; 2 wrong usage; 81 it failed
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--node",
    envvar=["KCOVER_NODE_NAME", "NODE_NAME"],
    metavar="NAME",
    help="Name of this node; default: $NODE_NAME.",
)
@click.option(
    "--hand-out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Copy the bandwidth check into this folder, for a container of the job's image.",
)
@node_kubeconfig_option
def preflight(node: str | None, hand_out: Path | None, kubeconfig: str | None) -> int:
    """Before a job starts here, ask the cluster whether this node passed its last inspection (NodeHealth).

    If that cannot be determined, the job starts: a failure of the check itself must not stop work.
    """
    from kcover_ebpf.api.preflight import FAILED
    from kcover_ebpf.errors import KcoverError, UsageError
    from kcover_ebpf.facts.health import Result

    if not node:
        raise UsageError("the node name is not known; pass --node NAME or set NODE_NAME")
    if hand_out is not None:
        _hand_out(hand_out)
    try:
        seen = _health(node, kubeconfig)
    except KcoverError as error:
        click.echo(f"node {node}: unknown: {error}")
        return 0
    if seen.is_stale(time.time()):
        click.echo(f"node {node}: unknown: its agent has not reported an inspection recently")
        return 0
    health = seen.health
    click.echo(f"node {node}: {health.result.value}: {health.reason or 'nothing to report'}")
    return FAILED if health.result is Result.FAIL else 0


def _hand_out(folder: Path) -> None:
    from kcover_ebpf.inspection import hand_out

    try:
        hand_out.hand_out(folder)
    except OSError as error:
        click.echo(f"{folder}: the bandwidth check cannot be copied there: {error.strerror}")


def _health(node: str, kubeconfig: str | None) -> ReceivedHealth:
    from kcover_ebpf.api.node_health import HEALTHS, health_of
    from kcover_ebpf.kube.client import connect
    from kcover_ebpf.kube.paths import segment

    api = connect(kubeconfig, None).hurried(PREFLIGHT_REQUEST_S)
    return health_of(api.get(f"{HEALTHS}/{segment(node)}"))
