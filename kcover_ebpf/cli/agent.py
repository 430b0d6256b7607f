"""`kcover-ebpf agent`: the program of a node of a Kubernetes cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcover_ebpf.cli.options import (
    catalog_option,
    duration_option,
    log_rules_option,
    metrics_option,
    nccl_probes_option,
    node_kubeconfig_option,
    peers_option,
    seconds_of,
)
from kcover_ebpf.tunables.host import LEAST_PERIOD_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from kcover_ebpf.api.fault_report import PodRef
    from kcover_ebpf.devices.telemetry.watch import TelemetryOptions
    from kcover_ebpf.inspection.round import RoundOptions
    from kcover_ebpf.settings import Settings

_EXAMPLES = """
\b
Examples:
  kcover-ebpf agent                                   as the chart's DaemonSet runs it
  kcover-ebpf agent --node node1 --kubeconfig admin.conf --namespace kcover
  kcover-ebpf agent --metrics :9465                   also /healthz and /readyz

\b
Exit codes:
  0 ended by SIGTERM or SIGINT; 2 wrong usage; 3 cannot observe.
  If the API server does not answer, the agent keeps retrying.
"""
_LEVELS = ("error", "warning", "info", "debug")


def _round_options(command: Callable[..., int]) -> Callable[..., int]:
    """Options of the scheduled inspection, passed to the command as `inspect`."""

    @click.option(
        "--inspect-checks",
        envvar="KCOVER_INSPECT_CHECKS",
        metavar="A,B",
        default="",
        help="Run only these light checks; default: those for which the node has hardware.",
    )
    @click.option(
        "--plugins",
        envvar="KCOVER_PLUGINS",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder with checks of your own (see kcover-ebpf inspect).",
    )
    @peers_option(
        "--inspect-peer", "A node or service that each inspection connects to; give at least two."
    )
    @click.option(
        "--inspect-write-to",
        multiple=True,
        metavar="FOLDER",
        help="A folder of the host in which each inspection writes and reads 1 MiB; may be repeated.",
    )
    @wraps(command)
    def with_round(
        inspect_checks: str,
        plugins: Path | None,
        peers: tuple[str, ...],
        inspect_write_to: tuple[str, ...],
        **others: object,
    ) -> int:
        wanted_options = _round(inspect_checks, plugins, peers)
        return command(
            inspect=replace(wanted_options, write_to=_folders(inspect_write_to)), **others
        )

    return with_round


def _folders(names: tuple[str, ...]) -> tuple[str, ...]:
    from kcover_ebpf.errors import UsageError

    if wrong := [name for name in names if not name.startswith("/")]:
        raise UsageError(f"--inspect-write-to {wrong[0]!r}: give an absolute path")
    return names


def _round(checks: str, folder: Path | None, peers: tuple[str, ...]) -> RoundOptions:
    """The scheduled checks; raises `UsageError` now rather than in the first round."""
    from kcover_ebpf.inspection import plugins, schedule
    from kcover_ebpf.inspection.options import InspectionOptions, peer_of
    from kcover_ebpf.inspection.round import RoundOptions

    names = tuple(name.strip() for name in checks.split(",") if name.strip())
    own = plugins.load(folder) if folder is not None else ()
    options = InspectionOptions(peers=tuple(map(peer_of, peers)))
    schedule.scheduled(names, own, options)
    return RoundOptions(names, str(folder) if folder is not None else "", peers=peers)


@click.command(epilog=_EXAMPLES)
@click.option(
    "--node",
    envvar=["KCOVER_NODE_NAME", "NODE_NAME"],
    metavar="NAME",
    callback=lambda _context, _option, value: _known(value),
    help="Name of this node in the cluster; default: $NODE_NAME.",
)
@click.option(
    "--namespace",
    envvar=["KCOVER_NAMESPACE", "POD_NAMESPACE"],
    default="kcover",
    show_default=True,
    help="Namespace for the report about the node itself; also read from $POD_NAMESPACE.",
)
@node_kubeconfig_option
@click.option("--context", envvar="KCOVER_CONTEXT", help="Context of the kubeconfig.")
@metrics_option("Serve Prometheus metrics, /healthz and /readyz at this address.", "KCOVER_METRICS")
@click.option(
    "--state-dir",
    envvar="KCOVER_STATE_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/lib/kcover-ebpf"),
    show_default=True,
    help="Directory for the last reports, executed orders and evidence.",
)
@catalog_option("KCOVER_CATALOG")
@duration_option(
    "--inspect-every",
    "600s",
    "Time between inspections of the node's health; 0s disables them.",
    "KCOVER_INSPECT_EVERY",
)
@_round_options
@click.option(
    "--telemetry-every",
    envvar="KCOVER_TELEMETRY_EVERY",
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="Time between readings of the GPUs, if there are any; 0s disables them.",
)
@click.option(
    "--telemetry-from",
    envvar="KCOVER_TELEMETRY_FROM",
    metavar="URL",
    default="",
    help="Read a running dcgm-exporter (http://ADDRESS:9400/metrics) instead of NVML.",
)
@click.option(
    "--believe-bandwidth",
    envvar="KCOVER_BELIEVE_BANDWIDTH",
    is_flag=True,
    help="If a job's own bandwidth check (preflight) fails, report the node, which is then cordoned for four hours.",
)
@click.option(
    "--pod-logs",
    envvar="KCOVER_POD_LOGS",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of container logs, usually /var/log/pods; default: the logs of pods are not read.",
)
@log_rules_option
@duration_option(
    "--longest-phase",
    "1h",
    "The longest phase that a program may announce in its log; a longer one is refused.",
    "KCOVER_LONGEST_PHASE",
)
@click.option(
    "--gpu-core-dumps",
    envvar="KCOVER_GPU_CORE_DUMPS",
    is_flag=True,
    help="Record as evidence which kernels run on the GPUs of ranks that set CUDA_COREDUMP_PIPE.",
)
@click.option(
    "--kubelet",
    envvar="KCOVER_KUBELET",
    metavar="HOST[:PORT]",
    default="",
    help="Address of this node's kubelet, which writes checkpoints of pods that request them by label; default: none.",
)
@nccl_probes_option("KCOVER_NCCL_PROBES")
@click.option(
    "--log-level",
    envvar="KCOVER_LOG_LEVEL",
    type=click.Choice(_LEVELS),
    default="info",
    show_default=True,
    expose_value=False,
    callback=lambda _context, _option, value: _log_from(value),
    help="Least severe messages to log.",
)
def agent(  # noqa: PLR0913, PLR0917 - one option each
    node: str,
    namespace: str,
    kubeconfig: str | None,
    context: str | None,
    metrics: str | None,
    state_dir: Path,
    catalog: Path | None,
    inspect_every: float,
    inspect: RoundOptions,
    telemetry_every: str,
    telemetry_from: str,
    believe_bandwidth: bool,
    pod_logs: Path | None,
    log_rules: Path | None,
    longest_phase: float,
    gpu_core_dumps: bool,
    kubelet: str,
    nccl_probes: bool,
) -> int:
    """Watch the training pods on this node, report what is observed and execute orders."""
    from kcover_ebpf.agent.main import AgentOptions, run_agent

    plan = AgentOptions(
        node=node,
        namespace=namespace,
        state_dir=state_dir,
        kubeconfig=kubeconfig,
        context=context,
        metrics=metrics,
        catalog=catalog,
        inspect_every_s=inspect_every,
        telemetry=_telemetry(telemetry_every, telemetry_from),
        believes_bandwidth=believe_bandwidth,
        inspect=replace(inspect, log_rules=str(log_rules or "")),
        pod_logs=pod_logs,
        log_rules=_checked(log_rules),
        gpu_core_dumps=gpu_core_dumps,
        kubelet=kubelet,
    )
    return run_agent(
        replace(plan, pod=_pod(namespace), settings=_settings(nccl_probes, longest_phase))
    )


def _settings(nccl_probes: bool, longest_phase_s: float) -> Settings:
    from kcover_ebpf.settings import Settings

    return Settings(nccl_probes=nccl_probes, longest_phase_s=longest_phase_s)


def _pod(namespace: str) -> PodRef | None:
    """The agent's own pod, from the chart's environment; None outside, or if `namespace` is not the pod's."""
    from kcover_ebpf.api.fault_report import PodRef

    name, uid = os.environ.get("POD_NAME"), os.environ.get("POD_UID")
    is_ours = os.environ.get("POD_NAMESPACE") == namespace
    return PodRef(name, uid) if name and uid and is_ours else None


def _log_from(level: str) -> None:
    from kcover_ebpf.output import log_lines

    log_lines.configure(level)


def _known(node: str | None) -> str:
    from kcover_ebpf.errors import UsageError

    if not node:
        raise UsageError("the node name is not known; pass --node NAME or set NODE_NAME")
    return node


def _checked(own: Path | None) -> Path | None:
    """A file of rules for log lines; an error in it is reported now, not by the process that reads logs."""
    if own is not None:
        from kcover_ebpf.logs import rules

        rules.load(own)
    return own


def _telemetry(every: str, source: str) -> TelemetryOptions | None:
    from kcover_ebpf.devices.telemetry.dcgm_source import checked
    from kcover_ebpf.devices.telemetry.watch import TelemetryOptions
    from kcover_ebpf.errors import UsageError
    from kcover_ebpf.host.host_programs import host_root

    period_s = seconds_of("--telemetry-every", every)
    if period_s <= 0:
        return None
    if period_s < LEAST_PERIOD_S:
        raise UsageError(
            f"--telemetry-every {every} is too often; NVML's own averages are over a second"
        )
    dcgm = checked(source, "--telemetry-from") if source else ""
    return TelemetryOptions(period_s, dcgm, host_root())
