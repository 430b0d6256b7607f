"""Options and output shared by the verbs of `kubectl kcover`: a client, a namespace, a format, and tables."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import click

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.pods import Pod, about_pod
from kcover_ebpf.cli.options import output_option
from kcover_ebpf.kube.client import ApiClient, connect, namespace_of
from kcover_ebpf.output.formatting import aligned, printable

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_Command = Callable[..., int]


def object_name(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """A valid object name; any other text could lead to another API path."""
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a valid object name", context, parameter)
    return value


def common(command: _Command) -> _Command:
    """Options of every verb, passed to the command as one client, namespace and format."""

    @click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        callback=object_name,
        help="Namespace; default: that of the context.",
    )
    @click.option(
        "--kubeconfig",
        metavar="FILE",
        help="Path of a kubeconfig; default: KUBECONFIG, then ~/.kube/config.",
    )
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
    @output_option("json: one object.")
    @wraps(command)
    def run(
        namespace: str | None, kubeconfig: str | None, context: str | None, output: str, **more: Any
    ) -> int:
        client = connect(kubeconfig, context)
        chosen = namespace or namespace_of(kubeconfig, context)
        return command(client=client, namespace=chosen, as_json=output == "json", **more)

    return run


def all_namespaces_option(command: _Command) -> _Command:
    """The option `-A`, passed to the command as `all_namespaces`."""
    option = click.option("-A", "--all-namespaces", is_flag=True, help="Include all namespaces.")
    return option(command)


def agent_namespace_option(command: _Command) -> _Command:
    """The option `--agent-namespace NAME`; None without it."""
    option = click.option(
        "--agent-namespace",
        metavar="NAME",
        callback=object_name,
        help="Namespace of the agents; needed if you may not list pods in all namespaces.",
    )
    return option(command)


def write_event(
    client: ApiClient, pod: Pod, annotations: Mapping[str, str], reason: str, message: str
) -> None:
    """Write an Event about a pod with which a request reaches the controller."""
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{pod.name[:200]}.{uuid.uuid4().hex[:16]}",
            "namespace": pod.namespace,
            "annotations": dict(annotations),
        },
        "involvedObject": about_pod(pod.namespace, pod.name, pod.uid),
        "reason": reason,
        "message": message,
        "type": "Warning",
        "source": {"component": "kubectl-kcover"},
        "reportingComponent": "kubectl-kcover",
    }
    client.create(f"/api/v1/namespaces/{pod.namespace}/events", event)


def show(line: str) -> None:
    """Print one line on standard output."""
    # names of threads, files and pods come from the job, and could command a terminal
    print(printable(line))


def show_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows with equal numbers of cells, in columns spaced as kubectl's."""
    print("\n".join(aligned(rows, gap="   ")))


def age(text: object) -> str:
    """Time since a time of the API, such as "5m"; "0s" if it is missing or in the future."""
    seconds = time.time() - rfc3339.from_text(str(text)) if text else 0.0
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
