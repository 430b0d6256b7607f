"""`kcover-ebpf controller`: combines the reports of all nodes, decides, and restarts jobs as a whole."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcover_ebpf.cli.options import duration_option, metrics_option
from kcover_ebpf.settings import read_table

if TYPE_CHECKING:
    from kcover_ebpf.controller.job_sizes import GpuPrices
    from kcover_ebpf.controller.main import ControllerOptions
    from kcover_ebpf.kube.client import ApiClient
    from kcover_ebpf.notify.target import NotifyTarget
    from kcover_ebpf.recovery.repair import RepairLimits

_EXAMPLES = """
\b
Examples:
  kcover-ebpf controller                              as the chart's Deployment runs it
  kcover-ebpf controller --kubeconfig admin.conf --namespace kcover --dry-run
  kcover-ebpf controller --only research --metrics :9466

\b
Exit codes:
  0 ended by SIGTERM or SIGINT; 2 wrong usage; with --withdraw: 1 something remains
"""
_HIGHEST_PRICE = 1e6
"""Highest accepted price of a GPU hour; the comparison also rejects NaN."""
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@click.command(epilog=_EXAMPLES)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Path of a kubeconfig; default: the pod's service account.",
)
@click.option(
    "--namespace", metavar="NAME", help="Namespace of the Lease; default: the controller's own."
)
@click.option(
    "--lease", default="kcover-ebpf-controller", show_default=True, help="Name of the Lease."
)
@metrics_option("Serve Prometheus metrics, /healthz and /readyz at this address.")
@click.option(
    "--page",
    metavar="ADDR:PORT",
    help="Serve a read-only page of all jobs at this address, for the API server's proxy; default: none.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAMESPACE",
    help="Only jobs in this namespace; may be repeated.",
)
@click.option(
    "--repairs",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON file with Jobs that repair cordoned nodes (docs/node-health.md); default: none.",
)
@click.option(
    "--notifications",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON file with targets of messages about incidents (docs/notifications.md); default: none.",
)
@click.option(
    "--notification-secrets",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder with the secrets of the targets: one file for each key that they name.",
)
@click.option(
    "--mark-culprits",
    is_flag=True,
    help="Put the condition kcover.io/Culprit on the pod of each open incident's culprit.",
)
@click.option(
    "--gpu-price",
    "gpu_prices",
    multiple=True,
    metavar="MODEL=PRICE",
    help="Price per hour of one GPU of this model (label nvidia.com/gpu.product); may be repeated.",
)
@click.option(
    "--currency", default="USD", show_default=True, metavar="CODE", help="Currency of --gpu-price."
)
@click.option("--dry-run", is_flag=True, help="Report what would be done without doing it.")
@click.option(
    "--breaker-jobs",
    default=10,
    show_default=True,
    type=click.IntRange(1),
    help="Circuit breaker: maximum number of jobs restarted within the window.",
)
@click.option(
    "--breaker-nodes",
    default=5,
    show_default=True,
    type=click.IntRange(0),
    help="Circuit breaker: maximum number of nodes cordoned or tainted within the window.",
)
@click.option(
    "--breaker-nodes-percent",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, 100),
    help="Largest share of all nodes cordoned or tainted at once; one is always allowed.",
)
@duration_option("--breaker-window", "300s", "Time window of both breakers.")
@click.option(
    "--namespace-percent",
    default=50.0,
    show_default=True,
    type=click.FloatRange(0, 100),
    help="Share of --breaker-jobs available to one namespace; one job is always allowed.",
)
@click.option(
    "--max-restarts",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    help="Maximum number of restarts of one job that a FaultPolicy may allow within its window.",
)
@duration_option("--min-window", "3600s", "Shortest restart window that a FaultPolicy may set.")
@duration_option(
    "--min-backoff",
    "10s",
    "Shortest backoff before a second restart that a FaultPolicy may set.",
)
@click.option(
    "--max-incidents",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of open incidents in one namespace.",
)
@click.option(
    "--withdraw",
    is_flag=True,
    help="Before an uninstallation: take the Lease, undo what the controller did to nodes, resume jobs"
    " that it suspended, and exit; exit code 1 if something remains.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least severe messages to log.",
)
def controller(  # noqa: PLR0913, PLR0917 - one argument for each option
    kubeconfig: str | None,
    namespace: str | None,
    lease: str,
    metrics: str | None,
    page: str | None,
    only: tuple[str, ...],
    repairs: Path | None,
    notifications: Path | None,
    notification_secrets: Path | None,
    mark_culprits: bool,
    gpu_prices: tuple[str, ...],
    currency: str,
    dry_run: bool,
    breaker_jobs: int,
    breaker_nodes: int,
    breaker_nodes_percent: float,
    breaker_window: float,
    namespace_percent: float,
    max_restarts: int,
    min_window: float,
    min_backoff: float,
    max_incidents: int,
    log_level: str,
    *,
    withdraw: bool,
) -> int:
    """Merge the reports of all nodes into Incidents, and restart jobs as a whole.

    Needs the permissions of the chart's controller; one replica leads, the others are on standby.
    """
    from kcover_ebpf.api.fault_policy import Bounds
    from kcover_ebpf.controller.breaker import Limits
    from kcover_ebpf.controller.main import Controller, ControllerOptions
    from kcover_ebpf.kube.client import connect
    from kcover_ebpf.output import log_lines
    from kcover_ebpf.output.metrics import parse_address
    from kcover_ebpf.recovery.nodes.node_plan import NodeBreaker
    from kcover_ebpf.watching.start import catch_ending

    log_lines.configure(log_level)
    settings = ControllerOptions(
        namespace=namespace or _own_namespace(),
        identity=os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        pod_uid=os.environ.get("POD_UID", ""),
        lease=lease,
        metrics=parse_address(metrics) if metrics else None,
        page=parse_address(page, "--page") if page else None,
        limits=Limits(
            dry_run=dry_run,
            jobs=breaker_jobs,
            window_s=breaker_window,
            only=frozenset(only),
            namespace_percent=namespace_percent,
            bounds=Bounds(
                max_restarts,
                int(min_window),
                int(min_backoff),
            ),
            incidents=max_incidents,
        ),
        nodes=NodeBreaker(breaker_nodes, breaker_nodes_percent),
        repairs=_repairs(repairs),
        targets=_targets(notifications),
        prices=_prices(gpu_prices, currency),
        secrets=notification_secrets,
        marks_culprits=mark_culprits,
    )
    if withdraw:
        return _withdraw(connect(kubeconfig), settings)
    program = Controller(connect(kubeconfig), settings)
    catch_ending(program.stop)
    program.run()
    return 0


def _withdraw(client: ApiClient, options: ControllerOptions) -> int:
    from kcover_ebpf.controller.withdrawal import Withdrawal
    from kcover_ebpf.kube.leader_election import LeaderElector

    elector = LeaderElector(
        client,
        options.namespace,
        options.lease,
        options.identity,
        time.monotonic,
        options.pod_uid,
    )
    elector.seizes = True
    left = Withdrawal(client, elector, options.limits.only).run()
    for line in left:
        click.echo(line, err=True)
    return 1 if left else 0


def _prices(texts: tuple[str, ...], currency: str) -> GpuPrices:
    from kcover_ebpf.controller.job_sizes import GpuPrices
    from kcover_ebpf.errors import UsageError

    by_product = {}
    for text in texts:
        product, _, price = text.rpartition("=")
        try:
            by_product[product] = float(price)
        except ValueError:
            by_product[product] = -1.0
        if not product or not 0.0 <= by_product[product] < _HIGHEST_PRICE:
            raise UsageError(f"--gpu-price {text!r}: write MODEL=PRICE, such as NVIDIA-H100=2.5")
    return GpuPrices(by_product, currency)


def _repairs(path: Path | None) -> RepairLimits:
    from kcover_ebpf.recovery.repair import RepairLimits, limits_of

    if path is None:
        return RepairLimits()
    return limits_of(read_table(path, "repairs"), f"repairs {path}")


def _targets(path: Path | None) -> tuple[NotifyTarget, ...]:
    from kcover_ebpf.errors import UsageError
    from kcover_ebpf.notify import otlp
    from kcover_ebpf.notify.message import WORDS
    from kcover_ebpf.notify.target import MessageForm, targets_of

    if path is None:
        return ()
    targets = targets_of(read_table(path, "notifications"), f"notifications {path}", WORDS)
    if any(target.form is MessageForm.OPEN_TELEMETRY for target in targets) and not otlp.is_here():
        raise UsageError(otlp.MISSING)
    return targets


def _own_namespace() -> str:
    if name := os.environ.get("POD_NAMESPACE"):
        return name
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"
