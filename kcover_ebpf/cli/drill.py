"""`kcover-ebpf drill`: the agent's side of `kubectl kcover drill`, run in the agent's container."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcover_ebpf.api.drill import FAULTS_HELP, DrillFault
from kcover_ebpf.cli.options import duration_option, node_kubeconfig_option

if TYPE_CHECKING:
    from kcover_ebpf.agent.containers import Containers
    from kcover_ebpf.api.pods import Pod

_EXAMPLES = """
\b
Examples:
  kcover-ebpf drill train-1 -n ml --fault stop --for 30s    as kubectl kcover drill runs it on the node

\b
Exit codes:
  0 the fault was injected and is over; 2 wrong usage, or the pod does not consent; 3 not possible here
"""


@click.command(epilog=_EXAMPLES)
@click.argument("pod")
@click.option("-n", "--namespace", required=True, metavar="NAME", help="Namespace of the pod.")
@click.option(
    "--fault",
    required=True,
    type=click.Choice([fault.value for fault in DrillFault]),
    help=FAULTS_HELP,
)
@duration_option("--for", "60s", "Duration of the fault; at most 10m.")
@click.option(
    "--node",
    envvar=["KCOVER_NODE_NAME", "NODE_NAME"],
    required=True,
    metavar="NAME",
    help="Name of this node.",
)
@click.option(
    "--state-dir",
    envvar="KCOVER_STATE_DIR",
    default="/var/lib/kcover-ebpf",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="State directory of the agent.",
)
@click.option("--with-asker", is_flag=True, hidden=True, help="End when standard input closes.")
@node_kubeconfig_option
def drill(  # noqa: PLR0913 - one for each option
    pod: str,
    namespace: str,
    fault: str,
    node: str,
    state_dir: Path,
    kubeconfig: str | None,
    *,
    with_asker: bool,
    **more: float,
) -> int:
    """Inject a fault into the rank of POD, if POD is on this node and its label kcover.io/drill is "true".

    Prints one JSON line when the fault is injected, and one when it is over. A stopped process is resumed after the
    time, and when this command ends for any reason.
    """
    from kcover_ebpf.agent.containers import Containers
    from kcover_ebpf.agent.drill import Drill
    from kcover_ebpf.api.codec import encode
    from kcover_ebpf.errors import UsageError
    from kcover_ebpf.trace.pod_target import end_with_asker
    from kcover_ebpf.tunables.agent import LONGEST_DRILL_S

    longest_s = more["for"]
    if not 1.0 <= longest_s <= LONGEST_DRILL_S:
        raise UsageError(f"--for is from 1s to {LONGEST_DRILL_S:.0f}s")
    found, containers = _consenting(kubeconfig, namespace, pod, node), Containers()
    members = partial(_members, containers, found)
    groups = partial(_groups, containers, found)
    with Drill(members, state_dir, longest_s, groups) as running:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: running.stop())
        if with_asker:
            end_with_asker(running.stop)
        print(json.dumps(encode(running.inject(DrillFault(fault)))), flush=True)
        over = running.wait()
    # the client may be gone
    sys.stdout.write(json.dumps(encode(over)) + "\n")
    return 0


def _members(containers: Containers, pod: Pod) -> set[int]:
    from kcover_ebpf.agent.containers import processes

    return processes(containers.of_ranks(pod))


def _groups(containers: Containers, pod: Pod) -> list[Path]:
    return [container.path for container in containers.of_ranks(pod)]


def _consenting(kubeconfig: str | None, namespace: str, name: str, node: str) -> Pod:
    """The pod, if the API server says that it is on this node and consents; raises `UsageError` otherwise."""
    from kcover_ebpf.api.drill import CONSENT, consents
    from kcover_ebpf.api.pods import pod_of
    from kcover_ebpf.errors import UsageError
    from kcover_ebpf.kube.client import connect, segment

    # an agent may list pods, but not get one
    session = connect(kubeconfig, is_small=True)
    query = {"fieldSelector": f"metadata.name={name},spec.nodeName={node}"}
    items = session.list(f"/api/v1/namespaces/{segment(namespace)}/pods", query).get("items") or ()
    pods = [pod for pod in map(pod_of, items) if (pod.name, pod.node) == (name, node)]
    if not pods:
        raise UsageError(f"no pod {namespace}/{name} on node {node}")
    if not consents(pods[0].labels):
        raise UsageError(
            f"pod {namespace}/{name} does not consent: it needs the label {CONSENT}=true"
        )
    return pods[0]
