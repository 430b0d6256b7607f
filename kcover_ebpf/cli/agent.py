"""`kcover-ebpf agent`: the program of a node of a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kcover_ebpf.inspection.round import RoundOptions

_EXAMPLES = """
\b
Examples:
  kcover-ebpf agent                                   as the chart's DaemonSet runs it
  kcover-ebpf agent --node node1 --kubeconfig admin.conf --namespace kcover-system
  kcover-ebpf agent --metrics :9464                   also /healthz and /readyz

\b
Exit codes:
  0 ended by SIGTERM or SIGINT; 2 wrong usage; 3 cannot observe.
  If the API server does not answer, the agent keeps retrying.
"""
_LEVELS = ("error", "warning", "info", "debug")


@click.command(epilog=_EXAMPLES)
@click.option(
    "--node",
    envvar=["KCOVER_NODE_NAME", "NODE_NAME"],
    metavar="NAME",
    help="Name of this node in the cluster; or NODE_NAME.",
)
@click.option(
    "--namespace",
    envvar=["KCOVER_NAMESPACE", "POD_NAMESPACE"],
    default="kcover-system",
    show_default=True,
    help="Namespace for the report about the node itself; or POD_NAMESPACE.",
)
@click.option(
    "--kubeconfig",
    envvar="KCOVER_KUBECONFIG",
    metavar="FILE",
    help="Instead of KUBECONFIG, the pod's service account, or ~/.kube/config.",
)
@click.option("--context", envvar="KCOVER_CONTEXT", help="Context of the kubeconfig.")
@click.option(
    "--metrics",
    envvar="KCOVER_METRICS",
    metavar="ADDR:PORT",
    help="Serve Prometheus metrics, /healthz and /readyz at this address.",
)
@click.option(
    "--state-dir",
    envvar="KCOVER_STATE_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/lib/kcover-ebpf"),
    show_default=True,
    help="Directory for unsent reports, executed orders and evidence.",
)
@click.option(
    "--catalog",
    envvar="KCOVER_CATALOG",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with your own entries for Xids and SXids (see kcover-ebpf xid).",
)
@click.option(
    "--inspect-every",
    envvar="KCOVER_INSPECT_EVERY",
    metavar="DURATION",
    default="600s",
    show_default=True,
    help="Time between two inspections of the node's health; 0s: none.",
)
@click.option(
    "--inspect-checks",
    envvar="KCOVER_INSPECT_CHECKS",
    metavar="A,B",
    default="",
    help="Only these checks, none that is heavy; default: those for which the node has hardware.",
)
@click.option(
    "--plugins",
    envvar="KCOVER_PLUGINS",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of your own checks (see kcover-ebpf inspect).",
)
@click.option(
    "--nccl-probes",
    envvar="KCOVER_NCCL_PROBES",
    is_flag=True,
    help="Count the operations of each rank by probes on its NCCL (see the page on NCCL).",
)
@click.option(
    "--log-level",
    envvar="KCOVER_LOG_LEVEL",
    type=click.Choice(_LEVELS),
    default="info",
    show_default=True,
)
def agent(  # noqa: PLR0913, PLR0917 - one option each
    node: str | None,
    namespace: str,
    kubeconfig: str | None,
    context: str | None,
    metrics: str | None,
    state_dir: Path,
    catalog: Path | None,
    inspect_every: str,
    inspect_checks: str,
    plugins: Path | None,
    nccl_probes: bool,
    log_level: str,
) -> int:
    """Watch the training pods on this node, report what is observed, execute orders."""
    from kcover_ebpf.errors import UsageError

    if not node:
        raise UsageError("the node name is not known; pass --node NAME or set NODE_NAME")
    from kcover_ebpf.agent.main import AgentOptions, run_agent
    from kcover_ebpf.output import log_lines
    from kcover_ebpf.settings import Settings

    log_lines.configure(log_level)

    plan = AgentOptions(
        node=node,
        namespace=namespace,
        state_dir=state_dir,
        kubeconfig=kubeconfig,
        context=context,
        metrics=metrics,
        catalog=catalog,
        inspect_every_s=_seconds(inspect_every),
        inspect=_round(inspect_checks, plugins),
        settings=Settings(nccl_probes=nccl_probes),
    )
    return run_agent(plan)


def _seconds(text: str) -> float:
    from kcover_ebpf.errors import UsageError
    from kcover_ebpf.settings import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--inspect-every: {error}") from error


def _round(checks: str, folder: Path | None) -> RoundOptions:
    """What is inspected; raises `UsageError` now, not at the first round."""
    from kcover_ebpf.inspection import options, plugins, schedule
    from kcover_ebpf.inspection.round import RoundOptions

    names = tuple(name.strip() for name in checks.split(",") if name.strip())
    own = plugins.load(folder) if folder is not None else ()
    schedule.scheduled(names, own, options.host_root())
    return RoundOptions(names, str(folder) if folder is not None else "")
