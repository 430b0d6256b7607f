"""`kcover-ebpf preflight`: run by an init container of a pod before the job starts."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import click

from kcover_ebpf.cli.options import node_kubeconfig_option
from kcover_ebpf.tunables.host import PREFLIGHT_AGAIN_S, PREFLIGHT_REQUEST_S

if TYPE_CHECKING:
    from kcover_ebpf.api.node_health import ReceivedHealth

_EXAMPLES = """
\b
Examples:
  kcover-ebpf preflight --node node-2          ask once
  kcover-ebpf preflight --wait                 as the init container runs it, with NODE_NAME

\b
Exit codes:
  0 the node passed its last inspection, or nothing is known of it, or the cluster cannot be asked;
  2 wrong usage; 81 it failed
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--node",
    envvar=["KCOVER_NODE_NAME", "NODE_NAME"],
    metavar="NAME",
    help="Name of this node; default: $NODE_NAME.",
)
@click.option("--wait", is_flag=True, help="While the node is bad, wait and ask again.")
@node_kubeconfig_option
def preflight(node: str | None, kubeconfig: str | None, *, wait: bool) -> int:
    """Before a job starts here, ask the cluster whether this node passed its last inspection (NodeHealth).

    If the answer is unknown, the job starts: a failure of this check must not stop work.
    """
    from kcover_ebpf.agent.preflight import FAILED
    from kcover_ebpf.errors import UsageError

    if not node:
        raise UsageError("the node name is not known; pass --node NAME or set NODE_NAME")
    if wait:
        # pid 1 of a container ignores signals without a handler
        signal.signal(signal.SIGTERM, lambda *_: os._exit(FAILED))
    said = ""
    while True:
        fails, text = _ask(node, kubeconfig)
        if text != said:
            said = text
            click.echo(f"node {node}: {text}")
        if not (fails and wait):
            return FAILED if fails else 0
        time.sleep(PREFLIGHT_AGAIN_S)


def _ask(node: str, kubeconfig: str | None) -> tuple[bool, str]:
    """Whether the node is known to be bad, and a sentence about what is known."""
    from kcover_ebpf.errors import KcoverError
    from kcover_ebpf.facts.health import Result

    try:
        received = _health(node, kubeconfig)
    except KcoverError as error:
        return False, f"unknown: {error}"
    if received.is_stale(time.time()):
        return False, "unknown: its agent has not reported an inspection recently"
    health = received.health
    text = f"{health.result.value}: {health.reason or 'nothing to report'}"
    return health.result is Result.FAIL, text


def _health(node: str, kubeconfig: str | None) -> ReceivedHealth:
    from kcover_ebpf.api.node_health import HEALTHS, health_of
    from kcover_ebpf.kube.client import connect, segment

    api = connect(kubeconfig, None, is_small=True).hurried(PREFLIGHT_REQUEST_S)
    return health_of(api.get(f"{HEALTHS}/{segment(node)}"))
