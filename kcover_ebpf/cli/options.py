"""Click options that are shared by several commands."""

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
    """An option for a duration as a user writes it (`90s`, `2h`); the command gets seconds."""
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
    """Seconds of a duration; raises `UsageError`, which names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def metrics_option(explained: str, envvar: str | None = None) -> Callable[[_Command], _Command]:
    """The option `--metrics ADDR:PORT`, with its own help text."""
    return click.option("--metrics", envvar=envvar, metavar="ADDR:PORT", help=explained)


def store_options(command: _Command) -> _Command:
    """`--endpoint` and `--region` of an S3-compatible store."""
    region = click.option(
        "--region",
        envvar="AWS_REGION",
        default="us-east-1",
        show_default=True,
        help="Region of the bucket; most stores other than Amazon's accept any value.",
    )
    endpoint = click.option(
        "--endpoint",
        envvar="AWS_ENDPOINT_URL_S3",
        metavar="URL",
        default="",
        help="Endpoint of the store (https://HOST); default: Amazon's for the region.",
    )
    return endpoint(region(command))


def catalog_option(envvar: str | None = None) -> Callable[[_Command], _Command]:
    """The option `--catalog FILE`; the file must exist."""
    return click.option(
        "--catalog",
        envvar=envvar,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file with your own entries for Xids and SXids (see kcover-ebpf xid).",
    )


def nccl_probes_option(envvar: str | None = None) -> Callable[[_Command], _Command]:
    """The flag `--nccl-probes`, also read from the environment."""
    return click.option(
        "--nccl-probes",
        envvar=envvar,
        is_flag=True,
        help="Count the operations of each rank with probes in its NCCL library (docs/nccl-probes.md).",
    )


def peers_option(name: str, explained: str) -> Callable[[_Command], _Command]:
    """Any number of HOST:PORT, passed as `peers`; separated by spaces in the environment."""
    return click.option(
        name, "peers", multiple=True, envvar="KCOVER_PEERS", metavar="HOST:PORT", help=explained
    )


def log_rules_option(command: _Command) -> _Command:
    """`--log-rules FILE`; the environment variable lets an inspection on demand use the agent's file."""
    return click.option(
        "--log-rules",
        envvar="KCOVER_LOG_RULES",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with your own rules for log lines, tried first (see kcover-ebpf logs).",
    )(command)


def node_kubeconfig_option(command: _Command) -> _Command:
    """`--kubeconfig FILE` of a program on a node, run in a pod or by an administrator."""
    return click.option(
        "--kubeconfig",
        envvar="KCOVER_KUBECONFIG",
        metavar="FILE",
        help="Path of a kubeconfig; default: KUBECONFIG, the pod's service account, then ~/.kube/config.",
    )(command)
