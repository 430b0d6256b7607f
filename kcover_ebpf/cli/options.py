"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from kcover_ebpf.errors import UsageError
from kcover_ebpf.settings import parse_duration

_Command = TypeVar("_Command", bound=Callable[..., object])


def output_option(
    explained: str = "json: one object on one line.", more: tuple[str, ...] = ()
) -> Callable[[_Command], _Command]:
    """`-o text|json`; `more` are further formats."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json", *more]),
        default="text",
        show_default=True,
        help=explained,
    )


def duration_option(
    name: str, default: str, explained: str, envvar: str | None = None
) -> Callable[[_Command], _Command]:
    """A length of time as a user writes it (`90s`, `2h`); the command gets seconds."""
    return click.option(
        name,
        envvar=envvar,
        metavar="DURATION",
        default=default,
        show_default=True,
        help=explained,
        callback=lambda _context, _option, value: seconds_of(name, value),
    )


def seconds_of(option: str, text: str) -> float:
    """A length of time; raises `UsageError`, which names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def metrics_option(explained: str, envvar: str | None = None) -> Callable[[_Command], _Command]:
    """`--metrics ADDR:PORT`."""
    return click.option("--metrics", envvar=envvar, metavar="ADDR:PORT", help=explained)


def store_options(command: _Command) -> _Command:
    """`--endpoint` and `--region` of an S3-compatible store."""
    region = click.option(
        "--region",
        envvar="AWS_REGION",
        default="us-east-1",
        show_default=True,
        help="Region of the bucket; most stores but Amazon's take any.",
    )
    endpoint = click.option(
        "--endpoint",
        envvar="AWS_ENDPOINT_URL_S3",
        metavar="URL",
        default="",
        help="Of the store, https://HOST; default: Amazon's in the region.",
    )
    return endpoint(region(command))


def catalog_option(envvar: str | None = None) -> Callable[[_Command], _Command]:
    """`--catalog FILE`, which must exist."""
    return click.option(
        "--catalog",
        envvar=envvar,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file with your own entries for Xids and SXids (see kcover-ebpf xid).",
    )


def nccl_probes_option(envvar: str | None = None) -> Callable[[_Command], _Command]:
    """`--nccl-probes`."""
    return click.option(
        "--nccl-probes",
        envvar=envvar,
        is_flag=True,
        help="Count the operations of each rank by probes on its NCCL library (docs/nccl-probes.md).",
    )


def peers_option(name: str, explained: str) -> Callable[[_Command], _Command]:
    """Any number of HOST:PORT, as `peers`; in the environment with spaces between them."""
    return click.option(
        name, "peers", multiple=True, envvar="KCOVER_PEERS", metavar="HOST:PORT", help=explained
    )


def log_rules_option(command: _Command) -> _Command:
    """`--log-rules FILE`, also by the environment, so that an inspection on demand takes the agent's."""
    return click.option(
        "--log-rules",
        envvar="KCOVER_LOG_RULES",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Your own rules for log lines, tried first (see kcover-ebpf logs).",
    )(command)


def node_kubeconfig_option(command: _Command) -> _Command:
    """`--kubeconfig FILE` of a program on a node, which is a pod's or an administrator's."""
    return click.option(
        "--kubeconfig",
        envvar="KCOVER_KUBECONFIG",
        metavar="FILE",
        help="Instead of KUBECONFIG, the pod's service account, or ~/.kube/config.",
    )(command)
